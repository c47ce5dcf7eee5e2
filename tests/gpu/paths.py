#!/usr/bin/env python3
"""Every way of getting GPU memory, up to a cap of 4,096 MiB and past it, under curb and under other preloads.

Runs the rows of `path_probe.PATHS` once for each column, judges curb's, prints the table and writes it as JSON and as
Markdown. Exit status: 0 all of curb's paths passed (or no GPU), 1 one failed, 77 no GPU with --strict.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import paths_report
from lab import Lab
from machine import describe
from path_probe import BARE, CURB, PATHS, Column, Found, probe, program
from starting import chosen, lab_for, parser_of


class _Preload(argparse.Action):
    """--preload begins a column; --env and --label say more of the last one."""

    def __call__(
        self, parser: argparse.ArgumentParser, options: argparse.Namespace, value: object, flag: str | None = None
    ) -> None:
        columns: list[Column] = options.columns
        text = str(value)
        if flag == "--preload":
            library = Path(text).resolve()
            if not library.exists():
                parser.error(f"--preload {text}: there is no such file")
            columns.append(Column(library.name, library))
            return
        if not columns:
            parser.error(f"{flag} comes after the --preload that it belongs to")
        last = columns[-1]
        if flag == "--label":
            columns[-1] = Column(text, last.library, last.env)
        elif "=" in text:
            columns[-1] = Column(last.label, last.library, last.env | {text.partition("=")[0]: text.partition("=")[2]})
        else:
            parser.error(f"--env {text}: NAME=VALUE is meant")


def options_of(words: list[str] | None = None) -> argparse.Namespace:
    parser = parser_of("gpu-test paths", __doc__, "path")
    parser.set_defaults(columns=[])
    parser.add_argument("--bare", action="store_true", help="also without any preload")
    parser.add_argument("--preload", action=_Preload, metavar="LIB", help="also under this library; may be repeated")
    parser.add_argument("--env", action=_Preload, metavar="NAME=VALUE", help="set for the --preload before it")
    parser.add_argument("--label", action=_Preload, metavar="NAME", help="heads the column of the --preload before it")
    return parser.parse_args(words)


def run_column(lab: Lab, column: Column) -> dict[str, Found]:
    table = {}
    for path in PATHS:
        if path.name not in lab.names:
            continue
        start = time.monotonic()
        found = table[path.name] = probe(lab, path, column)
        verdict = "skipped" if found.skipped else "FAIL" if found.wrong else "ran" if column != CURB else "pass"
        print(f"{verdict:8}{time.monotonic() - start:6.1f} s  {column.label}: {path.name}", flush=True)
    return table


def main() -> int:
    options = options_of()
    names = chosen((path.name for path in PATHS), options.only, "path")
    if options.list:
        print("\n".join(names))
        return 0
    columns = [CURB, *([BARE] if options.bare else []), *options.columns]
    labels = [column.label for column in columns]
    if len(set(labels)) < len(labels):
        sys.exit(f"gpu-test: two columns have one name ({', '.join(labels)}); --label tells them apart")
    with lab_for(options, names) as lab:
        program(lab)
        table = {column.label: run_column(lab, column) for column in columns}
        written = paths_report.write(describe(lab.device), table, options.out)
    print("\n" + "\n".join([*paths_report.lines(table), "", *paths_report.beside(table)]))
    print(*(f"written: {path}" for path in written), sep="\n")
    return 1 if any(found.wrong for found in table[CURB.label].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
