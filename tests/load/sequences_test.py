#!/usr/bin/env python3
"""Random sequences of calls: sequences_test.py BUILD PORTION [RUNTIME]

Runs threads_program with 1 to 8 threads, with and without blocks of pools, under policies with a cache, without one and
with growth, with NVML listing the process and not, as the seed says, for as many seconds as the matrix says, divided by
PORTION (sanitizers are slow). RUNTIME: a sanitizer's library, preloaded first. A run that fails prints its seed;
CURB_LOAD_SEED repeats that run alone, CURB_SEQUENCE_SECONDS sets the time.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / folder) for folder in ("common", "matrix")]
import matrix  # noqa: E402
from simulated import PATIENCE_S, Machine  # noqa: E402

BUILD = Path(sys.argv[1]).resolve()
PORTION = int(sys.argv[2])
RUNTIME = sys.argv[3] if len(sys.argv) > 3 else ""
SECONDS = float(os.environ.get("CURB_SEQUENCE_SECONDS", "0")) or matrix.figure("sequence_seconds") / PORTION
SEED = os.environ.get("CURB_LOAD_SEED")
CAP_MIB = 3072
POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"cache": {"max": "512MiB", "idle": "50ms"}},
    {"cache": {"max": "25%"}},
    {"growth": {"start": "1GiB", "step": "256MiB", "every": "5ms"}, "cache": {"max": "256MiB"}},
)


def run(seed: int) -> bool:
    choose = random.Random(seed)
    policy = {"gpu": {"*": {"cap": f"{CAP_MIB}MiB"} | choose.choice(POLICIES)}, "log": {"level": "off"}}
    nvml = choose.choice(({}, {"CURB_SIM_NVML": "nopids"}))
    threads = choose.randint(1, 8)
    operations = choose.choice((50, 500, 3000))
    # Blocks of a pool that is destroyed are measured by NVML alone.
    blocks = choose.choice(("pools", "no-pools", "pools" if nvml else "pools-end"))
    words = [operations, choose.randint(1, 5), choose.randrange(1 << 30), CAP_MIB, blocks, threads, choose.choice((8, 64, 512))]
    with Machine(BUILD, sanitizer=RUNTIME) as machine:
        done = subprocess.run(
            [BUILD / "tests/threads_program", *map(str, words)],
            env=machine.under_curb(policy, **nvml),
            capture_output=True,
            text=True,
            timeout=10 * PATIENCE_S,
            check=False,
        )
    if done.returncode:
        print(f"WRONG: CURB_LOAD_SEED={seed}: {policy['gpu']}, {nvml or 'listed'}, {words}: ended with {done.returncode}")
        print(done.stderr[-3000:], flush=True)
    return done.returncode == 0


def main() -> int:
    if SEED:
        return 0 if run(int(SEED)) else 1
    # An everyday run begins with the same sequences each time, so that it fails by a change and not by chance.
    seed = time.time_ns() % 1_000_000 * 1000 if os.environ.get("CURB_NIGHTLY") else 0
    runs, wrong = 0, 0
    begin = time.monotonic()
    while time.monotonic() - begin < SECONDS and wrong < 10:
        runs += 1
        wrong += not run(seed + runs)
    print(f"{runs} sequences, {wrong} wrong")
    if not wrong:
        matrix.report("sequence_seconds", int(time.monotonic() - begin))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
