"""What a test of the matrix (rows.def) has to reach, and how it says what it has: matrix.hpp for Python."""

from __future__ import annotations

import os
import re
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


def figure(name: str) -> int:
    """The least count that passes, on this run."""
    return next(row.figures[NIGHTLY] for row in ROWS if row.name == name)


def report(name: str, count: int) -> None:
    """Says how many there were; several tests may, or one several times, and their counts add up."""
    assert any(row.name == name for row in ROWS), name
    print(f"matrix: {name} {count}", flush=True)
    if folder := os.environ.get("CURB_MATRIX"):
        with open(Path(folder, f"{name}.{os.getpid()}"), "a", encoding="ascii") as file:
            file.write(f"{count}\n")


def reported(folder: Path) -> dict[str, int]:
    """What the tests of a run have said, by name."""
    return {
        row.name: sum(int(line) for file in folder.glob(f"{row.name}.*") for line in file.read_text().split())
        for row in ROWS
    }
