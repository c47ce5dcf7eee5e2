#!/usr/bin/env python3
"""Compares what a program sees of cuMemAlloc memory that curb makes with what it sees of the driver's: answers.cpp asks.

usage: answers_test.py ANSWERS LIBCURB DRIVER_FOLDER
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

# Answers that differ by design: a pattern of the question, and why.
BY_DESIGN = {
    r"past the end: ": "curb does not stand in front of copies, which may go on to the end of the last granule, and into a neighbour",
}


@dataclass(frozen=True)
class Difference:
    question: str
    drivers: str
    curbs: str

    @property
    def by_design(self) -> bool:
        return any(re.search(pattern, self.question) for pattern in BY_DESIGN)

    def __str__(self) -> str:
        return f"{self.question}: {self.drivers} | {self.curbs}"


def answers(program: Path, library: Path, light: bool, env: dict[str, str]) -> dict[str, str]:
    """Returns the answer of each question, with blocks of curb's (`light`) or of the driver's."""
    with tempfile.TemporaryDirectory(prefix="curb-answers-") as folder:
        policy = Path(folder) / "job.json"
        policy.write_text(json.dumps({"version": 1, "suspend": {"idle": "1h", "light": light}}))
        curb = {"LD_PRELOAD": str(library), "CURB_POLICY": str(policy)}
        done = subprocess.run([program], env=env | curb, capture_output=True, text=True, timeout=120, check=False)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    if done.returncode != 0:
        raise RuntimeError(f"status {done.returncode} after {lines[-1:]}: {done.stderr.strip()[-500:]}")
    if len({question for question, _ in lines}) != len(lines):
        raise RuntimeError("two questions have one name")
    return {question: answer for question, answer in lines}


def compare(program: Path, library: Path, env: dict[str, str]) -> tuple[int, list[Difference]]:
    """Returns how many answers there are, and those that differ."""
    drivers, curbs = (answers(program, library, light, env) for light in (False, True))
    both = {**drivers, **curbs}
    return len(both), [
        Difference(question, drivers.get(question, "-"), curbs.get(question, "-"))
        for question in both
        if drivers.get(question) != curbs.get(question)
    ]


def made_blocks(differences: list[Difference]) -> bool:
    """Only curb's blocks let copies go past their end."""
    return any("past the end: " in one.question for one in differences)


def main() -> int:
    program, library = (Path(argument).resolve() for argument in sys.argv[1:3])
    count, differences = compare(program, library, os.environ | {"LD_LIBRARY_PATH": sys.argv[3]})
    unexpected = [one for one in differences if not one.by_design]
    for one in differences:
        print("by design" if one.by_design else "DIFFERS", one)
    if not made_blocks(differences):
        print("curb made no blocks: copies past the end are refused")
    print(f"{count} answers compared: {len(differences) - len(unexpected)} differ by design, {len(unexpected)} otherwise")
    return 1 if unexpected or not made_blocks(differences) else 0


if __name__ == "__main__":
    sys.exit(main())
