"""The figures that tests of the matrix (rows.def) have to reach, and their reports: matrix.hpp for Python.

matrix.py FOLDER prints what the tests of a run have reported. CURB_MATRIX named FOLDER while they ran. Ends with 1 if a
figure is missed.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    number: int
    name: str
    figures: tuple[int, int]
    """For any run, and for a nightly one."""
    text: str


ROWS = [
    Row(int(number), name, (int(figure), int(nightly)), text)
    for number, name, figure, nightly, text in re.findall(
        r'^CURB_ROW\((\d+), (\w+), (\d+), (\d+), "([^"]*)"\)$', Path(__file__).with_name("rows.def").read_text(), re.MULTILINE
    )
]
NIGHTLY = os.environ.get("CURB_NIGHTLY") == "1"


def figure(name: str, nightly: bool = NIGHTLY) -> int:
    """Returns the least count that passes, by default on this run."""
    return next(row.figures[nightly] for row in ROWS if row.name == name)


def report(name: str, count: int) -> None:
    """Prints and records a count. Counts of several tests, and of several reports of one, add up."""
    assert any(row.name == name for row in ROWS), name
    print(f"matrix: {name} {count}", flush=True)
    if folder := os.environ.get("CURB_MATRIX"):
        with open(Path(folder, f"{name}.{os.getpid()}"), "a", encoding="ascii") as file:
            file.write(f"{count}\n")


def reported(folder: Path) -> dict[str, int]:
    """Returns what the tests of a run have reported, by name."""
    return {
        row.name: sum(int(line) for file in folder.glob(f"{row.name}.*") for line in file.read_text().split())
        for row in ROWS
    }


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: matrix.py FOLDER", file=sys.stderr)
        return 2
    counts = reported(Path(sys.argv[1]))
    missed = []
    print(f"{'':>2}  {'counted':>11}  {'at least':>11}")
    for row in ROWS:
        count, least = counts[row.name], row.figures[NIGHTLY]
        if not least:
            continue
        short = "" if count >= least else "  MISSED"
        missed += [row.name] if short else []
        print(f"{row.number:>2}  {count:>11,}  {least:>11,}  {row.text}{short}")
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
