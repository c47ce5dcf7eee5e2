#!/usr/bin/env python3
"""32 threads that take and free memory of every family: threads_test.py BUILD PORTION [RUNTIME]

Runs threads_program under several policies until the matrix's figure of operations is reached, divided by
PORTION (sanitizers are slow). RUNTIME: a sanitizer's library, preloaded first. CURB_LOAD_SEED repeats a run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / folder) for folder in ("common", "matrix")]
import matrix  # noqa: E402
from simulated import Machine  # noqa: E402

BUILD = Path(sys.argv[1]).resolve()
PORTION = int(sys.argv[2])
RUNTIME = sys.argv[3] if len(sys.argv) > 3 else ""
SEED = int(os.environ.get("CURB_LOAD_SEED", str(time.time_ns() % 1_000_000)))
CAP = 3072
POLICIES: dict[str, dict[str, Any]] = {
    "no cache": {},
    "cache": {"cache": {"max": "512MiB", "idle": "50ms"}},
    "growth": {"growth": {"start": "1GiB", "step": "256MiB", "every": "5ms"}},
    "waiting, cache": {
        "growth": {"start": "1GiB", "factor": 1.5, "every": "5ms", "wait": "1ms"},
        "cache": {"max": "25%"},
    },
}


def run(name: str, gpu: dict[str, Any], blocks: str, operations: int, seed: int) -> tuple[int, bool]:
    """How many operations there were, and whether all was as it must be."""
    with Machine(BUILD, sanitizer=RUNTIME) as machine:
        policy = {"gpu": {"*": {"cap": f"{CAP}MiB"} | gpu}, "log": {"level": "off"}}
        begin = time.monotonic()
        done = subprocess.run(
            [BUILD / "tests/threads_program", str(operations), "5", str(seed), str(CAP), blocks, "32", "2048"],
            env=machine.under_curb(policy),
            capture_output=True,
            text=True,
            check=False,
        )
    counts = [int(word) for word in done.stdout.split()] if done.returncode == 0 else []
    print(f"{name}, {blocks}: {counts or done.returncode}, {time.monotonic() - begin:.1f} s", flush=True)
    # Refusals show that the cap was met.
    right = len(counts) == 4 and counts[1] > counts[0] // 100 and counts[3] > 0
    if not right:
        print(f"WRONG: ended with {done.returncode}, said {done.stdout!r}\n{done.stderr[-3000:]}", flush=True)
    return (counts[0] if counts else 0), right


def main() -> int:
    print(f"CURB_LOAD_SEED={SEED}", flush=True)
    wanted = matrix.figure("operations") // PORTION
    runs = [(name, gpu, blocks) for name, gpu in POLICIES.items() for blocks in ("pools-end", "no-pools")]
    runs.sort(key=lambda one: "waiting" not in one[0])
    done, wrong = 0, 0
    for number, (name, gpu, blocks) in enumerate(runs):
        # Those that wait wake each other with every free, and take ten times as long.
        share = (wanted - done) // (len(runs) - number) // (8 if "waiting" in name else 1) + 1
        operations, right = run(name, gpu, blocks, share, SEED + number)
        done += operations
        wrong += not right
    matrix.report("operations", done)
    return 1 if wrong or done < wanted else 0


if __name__ == "__main__":
    sys.exit(main())
