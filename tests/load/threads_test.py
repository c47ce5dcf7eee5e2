#!/usr/bin/env python3
"""Threads that allocate and free memory of every family: threads_test.py BUILD PORTION [RUNTIME]

Runs threads_program with 32 threads under several policies until the matrix's figure of operations is reached, divided by
PORTION (sanitizers are slow); CURB_LOAD_SEED repeats this part. Then runs random sequences with 1 to 8 threads, with NVML
listing the process or not, for as many seconds as the matrix says; CURB_SEQUENCE repeats one.
"""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any

from processes import PORTION, SEED, run

import matrix

CAP = 3072
MOST = 500_000
"""Operations of one run, roughly: a minute or two on two busy cores, so a run has time left before it counts as hung."""
POLICIES: dict[str, dict[str, Any]] = {
    # Those that wait wake each other with every free, and take ten times as long.
    "waiting, cache": {
        "growth": {"start": "1GiB", "factor": 1.5, "every": "5ms", "wait": "1ms"},
        "cache": {"max": "25%"},
    },
    "no cache": {},
    "cache": {"cache": {"max": "512MiB", "idle": "50ms"}},
    "growth": {"growth": {"start": "1GiB", "step": "256MiB", "every": "5ms"}},
}


def threads(name: str, blocks: str, operations: int, seed: int) -> tuple[int, int, int, bool]:
    """Returns the number of operations, of refusals, the bytes released, and whether all was right."""
    begin = time.monotonic()
    words = [operations, 5, seed, CAP, blocks, 32, 2048]
    status, said, error = run("threads_program", words, {"cap": f"{CAP}MiB"} | POLICIES[name])
    counts = [int(word) for word in said.split()] if status == 0 else []
    print(f"{name}, {blocks}: {counts or status}, {time.monotonic() - begin:.1f} s", flush=True)
    right = len(counts) == 4
    if not right:
        print(f"WRONG: CURB_LOAD_SEED={SEED}: ended with {status}, said {said!r}\n{error}", flush=True)
    return (*((counts[0], counts[1], counts[3]) if right else (0, 0, 0)), right)


def sequence(seed: int) -> bool:
    choose = random.Random(seed)
    name = choose.choice(list(POLICIES))
    nvml = choose.choice(({}, {"CURB_SIM_NVML": "nopids"}))
    # Only NVML measures blocks of a destroyed pool.
    blocks = choose.choice(("pools", "no-pools", "pools" if nvml else "pools-end"))
    operations, rounds = choose.choice((50, 500, 3000)), choose.randint(1, 5)
    words = [operations, rounds, choose.randrange(1 << 30), CAP, blocks, choose.randint(1, 8), choose.choice((8, 64, 512))]
    status, _, error = run("threads_program", words, {"cap": f"{CAP}MiB"} | POLICIES[name], **nvml)
    if status:
        print(f"WRONG: CURB_SEQUENCE={seed}: {name}, {nvml or 'listed'}, {words}: ended with {status}\n{error}", flush=True)
    return status == 0


def main() -> int:
    if only := os.environ.get("CURB_SEQUENCE"):
        return not sequence(int(only))
    wanted = matrix.figure("operations") // PORTION
    runs = [(name, blocks) for name in POLICIES for blocks in ("pools-end", "no-pools")]
    runs *= wanted // (len(runs) * MOST) + 1
    done, refused, released, wrong = 0, 0, 0, 0
    for number, (name, blocks) in enumerate(runs):
        share = (wanted - done) // (len(runs) - number) // (8 if "waiting" in name else 1) + 1
        operations, refusals, given, right = threads(name, blocks, share, SEED + number)
        done += operations
        refused += refusals
        released += given
        wrong += not right
    # One run of a few hundred operations may meet no cap, and leave the releases beside it nothing to give back.
    if refused <= done // 100:
        print(f"WRONG: {refused} of {done} operations met the cap", flush=True)
        wrong += 1
    if released == 0:
        print("WRONG: no release gave memory back", flush=True)
        wrong += 1
    matrix.report("operations", done)
    # An everyday run begins with the same sequences each time, so that it fails by a change and not by chance.
    seed = SEED * 1000 if matrix.NIGHTLY else 0
    begin = time.monotonic()
    while (took := time.monotonic() - begin) < matrix.figure("sequence_seconds") / PORTION and wrong < 10:
        seed += 1
        wrong += not sequence(seed)
    matrix.report("sequence_seconds", int(took) * (not wrong))
    return 1 if wrong or done < wanted else 0


if __name__ == "__main__":
    sys.exit(main())
