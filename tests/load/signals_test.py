#!/usr/bin/env python3
"""Release signals to every thread under load: signals_test.py BUILD PORTION [RUNTIME]

Runs signals_program with every kind of handler until the matrix's figure of signals has arrived, divided by
PORTION. RUNTIME: a sanitizer's library, preloaded first.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / folder) for folder in ("common", "matrix")]
import matrix  # noqa: E402
from simulated import Machine  # noqa: E402

BUILD = Path(sys.argv[1]).resolve()
PORTION = int(sys.argv[2])
RUNTIME = sys.argv[3] if len(sys.argv) > 3 else ""
HANDLERS = ("resethand", "none", "siginfo", "restart", "nodefer", "altstack")
PATIENCE_S = 300.0


def main() -> int:
    wanted = matrix.figure("signals") // PORTION
    arrived, wrong = 0, 0
    for number, handler in enumerate(HANDLERS):
        # One for a single delivery has to be set again before the next: one signal at a time, and slow.
        share = wanted // 50 if handler == "resethand" else (wanted - arrived) // (len(HANDLERS) - number)
        begin = time.monotonic()
        with Machine(BUILD, sanitizer=RUNTIME) as machine:
            gpu = {"cap": "2GiB", "cache": {"max": "128MiB"}}
            policy = {"gpu": {"*": gpu}, "log": {"level": "off"}}
            try:
                done = subprocess.run(
                    [BUILD / "tests/signals_program", str(share + 1), handler],
                    env=machine.under_curb(policy),
                    capture_output=True,
                    text=True,
                    timeout=PATIENCE_S,
                    check=False,
                )
                status, said, error = done.returncode, done.stdout, done.stderr
            except subprocess.TimeoutExpired as late:
                status, said, error = -1, "", f"not ended after {PATIENCE_S:g} s: {late.stderr!r}"
        print(f"{handler}: {said.strip() or status}, {time.monotonic() - begin:.1f} s", flush=True)
        if status == 0:
            arrived += int(said)
        else:
            wrong += 1
            print(f"WRONG: {handler} ended with {status}: {error[-3000:]}", flush=True)
    matrix.report("signals", arrived)
    return 1 if wrong or arrived < wanted else 0


if __name__ == "__main__":
    sys.exit(main())
