#!/usr/bin/env python3
"""Fills a cap of 4,096 MiB by every path to GPU memory, under curb and under other preloads.

Runs the paths of `path_probe.PATHS` once for each column, judges curb's column, prints the table and writes it as JSON and as
Markdown. Exit status: 0 all paths passed under curb (or no GPU), 1 one failed, 77 no GPU with --strict.
"""

from __future__ import annotations

import sys
import time

import paths_report
from lab import Lab, Preload
from machine import describe
from path_probe import PATHS, Found, probe, program
from starting import chosen, lab_for, parser_of


def run_column(lab: Lab, label: str, column: Preload | None) -> dict[str, Found]:
    table = {}
    for path in PATHS:
        if path.name not in lab.names:
            continue
        start = time.monotonic()
        found = table[path.name] = probe(lab, path, label, column)
        verdict = "skipped" if found.skipped else "FAIL" if found.wrong else "ran" if label != "curb" else "pass"
        print(f"{verdict:8}{time.monotonic() - start:6.1f} s  {label}: {path.name}", flush=True)
    return table


def main() -> int:
    parser = parser_of("gpu-test paths", __doc__, "path")
    parser.add_argument("--bare", action="store_true", help="also without any preload")
    parser.add_argument(
        "--against", type=Preload.parse, action="append", default=[], metavar="NAME=LIB[,VAR=VALUE...]",
        help="also under this preload; may be repeated",
    )  # fmt: skip
    options = parser.parse_args()
    names = chosen((path.name for path in PATHS), options.only, "path")
    if options.list:
        print("\n".join(names))
        return 0
    columns: dict[str, Preload | None] = {"curb": None}
    columns |= {"bare": None} if options.bare else {}
    columns |= {preload.name: preload for preload in options.against}
    with lab_for(options, names) as lab:
        program(lab)
        table = {label: run_column(lab, label, column) for label, column in columns.items()}
        written = paths_report.write(describe(lab.device), table, options.out)
    print("\n" + "\n".join([*paths_report.lines(table["curb"]), "", *paths_report.beside(table)]))
    print(*(f"written: {path}" for path in written), sep="\n")
    return 1 if any(found.wrong for found in table["curb"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
