"""How a whole program takes its turns: it trains so many steps when it is told to, and says at the end what came of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "gpu" / "programs"))
from talk import say, wait  # noqa: E402


def serve(steps: Callable[[int], None], losses: Callable[[], list[float]] = list) -> None:
    """`steps` does so many, and returns when the device has done them. The caller has done the first ones, which are not
    like the others; nor are those after a sleep, so an eighth of a sample comes first, untimed."""

    def timed(count: int) -> float:
        steps(max(count // 8, 1))
        start = time.perf_counter_ns()
        steps(count)
        return (time.perf_counter_ns() - start) / count

    serve_samples(timed, losses)


def serve_samples(sample: Callable[[int], float], losses: Callable[[], list[float]] = list) -> None:
    """`sample` says the nanoseconds of one of so many operations."""
    say("ready")
    while True:
        word, _, count = wait().partition(" ")
        if word == "sample":
            say("sample", ns=sample(int(count)))
        else:
            say("finished", losses=losses())
