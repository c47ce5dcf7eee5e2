"""Fills the GPU up to the cap with a framework of frameworks.py: `fill.py NAME`. Other programs call run() with their own.

Prints these events, and waits for a command after each but the last:
  warm   it is ready
  full   it has filled the cap
  idle   it has freed everything and computed; the framework's cache is full, and the test requests a release
  done   it has allocated and computed again

The warm-up runs every kernel that is used later, at the same shapes, because the driver loads code at the first launch. The
tests are about a program that has run for a while, as a training after its first steps.
"""

from __future__ import annotations

import sys
from typing import Any

from frameworks import FRAMEWORKS, Framework
from talk import kind, say, wait


def fill_up(framework: Framework) -> tuple[list[Any], dict[str, Any]]:
    """Allocates until the smallest size is refused. Returns the pieces, and the fields of the event "full"."""
    pieces: list[Any] = []
    filled = 0
    errors: list[str] = []
    message = ""
    for mib in framework.sizes:
        while len(pieces) < 4096:
            try:
                pieces.append(framework.piece(mib, len(pieces) % 100 + 1))
            except Exception as error:  # the test judges the type
                errors.append(kind(error))
                message = message or str(error)
                break
            filled += mib
    return pieces, {
        "errors": sorted(set(errors)),
        "message": message[:400],
        "pieces": len(pieces),
        "filled_mib": filled,
        "intact": all(framework.holds(piece, index % 100 + 1) for index, piece in enumerate(pieces)),
    }


def run(framework: Framework) -> None:
    framework.warm_up()
    say("warm", result=framework.result() if framework.result else None)
    wait()
    pieces, found = fill_up(framework)
    say("full", **found)
    wait()
    pieces.clear()
    correct = framework.compute()
    say("idle", correct=correct, cached_mib=framework.reserved() // 2**20 if framework.reserved else None)
    wait()
    pieces = [framework.piece(framework.sizes[0], mark) for mark in (1, 2)]
    intact = all(framework.holds(piece, mark) for mark, piece in enumerate(pieces, 1))
    say("done", correct=intact and framework.compute())


if __name__ == "__main__":
    run(FRAMEWORKS[sys.argv[1]]())
