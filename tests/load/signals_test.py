#!/usr/bin/env python3
"""Release signals to every thread under load: signals_test.py BUILD PORTION [RUNTIME]

Runs signals_program with every kind of handler until the matrix's figure of signals has arrived, divided by PORTION.
"""

from __future__ import annotations

import sys
import time

from processes import PORTION, run

import matrix

HANDLERS = ("resethand", "none", "siginfo", "restart", "nodefer", "altstack")


def main() -> int:
    wanted = matrix.figure("signals") // PORTION
    arrived, wrong = 0, 0
    for number, handler in enumerate(HANDLERS):
        # A one-shot handler must be set again before the next signal: one signal at a time, which is slow.
        share = wanted // 50 if handler == "resethand" else (wanted - arrived) // (len(HANDLERS) - number)
        begin = time.monotonic()
        status, said, error = run("signals_program", [share + 1, handler], {"cap": "2GiB", "cache": {"max": "128MiB"}})
        print(f"{handler}: {said.strip() or status}, {time.monotonic() - begin:.1f} s", flush=True)
        arrived += int(said) if status == 0 else 0
        wrong += status != 0
        if status:
            print(f"WRONG: {handler} ended with {status}: {error}", flush=True)
    matrix.report("signals", arrived)
    return 1 if wrong or arrived < wanted else 0


if __name__ == "__main__":
    sys.exit(main())
