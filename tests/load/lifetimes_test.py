#!/usr/bin/env python3
"""Every family of memory across every event in the life of its context: lifetimes_test.py BUILD PORTION [RUNTIME]

Runs lifetimes_program for each cell of its matrix, with a cache or without, with NVML listing the process or not: in one
of these four ways in turn, nightly in all. CURB_LIFETIMES=TEXT runs only cells that have the text in their names.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from processes import BUILD, PORTION, RUNTIME

import matrix
from simulated import PATIENCE_S, Machine

PROGRAM = BUILD / "tests/lifetimes_program"
CAP_MIB = 3072
CACHES = {"no cache": "", "cache": ', "cache": { "max": "512MiB", "idle": "10m" }'}
NVML = {"listed": "", "not listed": "nopids"}


class Cell(NamedTuple):
    family: str
    event: str
    takes: str
    """"code": only NVML shows how much it takes; or "memory"."""
    cache: str
    nvml: str


# Why cells are left out: those that have all of these names.
GREEN_UNSEEN = "without NVML, the 6 MiB of a green context go with the last context, not with the primary one"
CODE_UNSEEN = "code is measured by NVML alone, which does not list the process there"
LEFT_OUT: dict[frozenset[str], str] = {
    frozenset({"code", "not listed"}): CODE_UNSEEN,
    frozenset({"green_context", "not listed", "context destroyed"}): GREEN_UNSEEN,
    frozenset({"green_context", "not listed", "attached and detached"}): GREEN_UNSEEN,
}


def why_left_out(cell: Cell) -> str:
    return next((why for names, why in LEFT_OUT.items() if names <= set(cell)), "")


def cells() -> list[Cell]:
    lines = subprocess.run([PROGRAM], env={"LD_LIBRARY_PATH": str(BUILD / "sim")}, capture_output=True, text=True, check=True)
    rows = [line.split("\t") for line in lines.stdout.splitlines()]
    ways = list(itertools.product(CACHES, NVML))
    return [
        Cell(*row, *way)
        for number, row in enumerate(rows)
        for turn, way in enumerate(ways)
        # The ways alternate: each event meets all of them across the families, and each family across the events.
        if matrix.NIGHTLY or turn == (number + number // len(ways)) % len(ways)
    ]


def run(cell: Cell) -> str:
    """Runs a cell. Returns its error; empty if there is none."""
    with Machine(BUILD, sanitizer=RUNTIME) as machine:
        text = '{ "version": 1, "gpu": { "*": { "cap": "CAP"%s } }, "log": { "level": "off" } }' % CACHES[cell.cache]
        file = machine.folder / "job.json"
        Path(f"{file}.in").write_text(text)
        file.write_text(text.replace("CAP", f"{CAP_MIB}MiB"))
        environment = machine.under_curb(CURB_POLICY=str(file))
        if NVML[cell.nvml]:
            environment["CURB_SIM_NVML"] = NVML[cell.nvml]
        command = [PROGRAM, file, str(CAP_MIB), cell.family, cell.event]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    return f"ended with {done.returncode}\n{done.stderr[-2000:]}" if done.returncode else ""


def main() -> int:
    everything = cells()
    chosen = [cell for cell in everything if not why_left_out(cell)][::PORTION]
    if only := os.environ.get("CURB_LIFETIMES"):
        chosen = [cell for cell in everything if only in ", ".join(cell)]
    wrong = 0
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        for cell, result in zip(chosen, pool.map(run, chosen)):
            wrong += bool(result)
            if result:
                print(f"WRONG: {', '.join(cell)}: {result}", flush=True)
    for why in sorted(set(LEFT_OUT.values())):
        print(f"left out: {sum(why_left_out(cell) == why for cell in everything)} cells: {why}")
    print(f"{len(chosen)} cells of {len(everything)}, {wrong} wrong")
    matrix.report("lifetimes", len(chosen) - wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
