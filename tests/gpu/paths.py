#!/usr/bin/env python3
"""Every way of getting GPU memory, up to a cap of 4,096 MiB and past it, under curb and under other preloads.

Runs the rows of `path_probe.PATHS` once for each column, judges curb's, prints the table and writes it as JSON and as
Markdown. Exit status: 0 all of curb's paths passed (or no GPU), 1 one failed, 77 no GPU with --strict.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import paths_report
from lab import Lab, library_in
from machine import describe
from nvml import Device, NvmlError
from path_probe import BARE, CURB, PATHS, Column, Found, probe, program

ROOT = Path(__file__).resolve().parents[2]


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
    parser = argparse.ArgumentParser(prog="gpu-test paths", description=(__doc__ or "").splitlines()[0])
    parser.set_defaults(columns=[])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", metavar="DIR", help="where results go")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="paths whose name contains one of these")
    parser.add_argument("--gpu", type=int, default=0, metavar="N", help="nvidia-smi's index of the GPU (default 0)")
    parser.add_argument("--bare", action="store_true", help="also without any preload")
    parser.add_argument("--preload", action=_Preload, metavar="LIB", help="also under this library; may be repeated")
    parser.add_argument("--env", action=_Preload, metavar="NAME=VALUE", help="set for the --preload before it")
    parser.add_argument("--label", action=_Preload, metavar="NAME", help="heads the column of the --preload before it")
    parser.add_argument("--strict", action="store_true", help="exit 77 where there is no GPU")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the programs' stderr and curb's logs there")
    parser.add_argument("--list", action="store_true", help="name the paths and exit")
    return parser.parse_args(words)


def run_column(lab: Lab, column: Column, words: list[str]) -> dict[str, Found]:
    table = {}
    for path in PATHS:
        if words and not any(word in path.name for word in words):
            continue
        start = time.monotonic()
        found = table[path.name] = probe(lab, path, column)
        verdict = "skipped" if found.skipped else "FAIL" if found.wrong else "ran" if column != CURB else "pass"
        print(f"{verdict:8}{time.monotonic() - start:6.1f} s  {column.label}: {path.name}", flush=True)
    return table


def main() -> int:
    options = options_of()
    if options.list:
        print("\n".join(path.name for path in PATHS))
        return 0
    columns = [CURB, *([BARE] if options.bare else []), *options.columns]
    labels = [column.label for column in columns]
    if len(set(labels)) < len(labels):
        sys.exit(f"gpu-test: two columns have one name ({', '.join(labels)}); --label tells them apart")
    try:
        device = Device(options.gpu)
    except NvmlError:
        print("skipped: no NVIDIA GPU here (nvidia-smi not found or no device)")
        return 77 if options.strict else 0
    build = ROOT / "build"
    with tempfile.TemporaryDirectory(prefix="curb-gpu-test-") as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        lab = Lab(device, library_in(build), build, folder, quick=False)
        program(lab)
        table = {column.label: run_column(lab, column, options.only) for column in columns}
    written = paths_report.write(describe(device, ROOT), table, options.out)
    print("\n" + "\n".join([*paths_report.lines(table), "", *paths_report.beside(table)]))
    print(*(f"written: {path}" for path in written), sep="\n")
    return 1 if any(found.wrong for found in table[CURB.label].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
