"""How a whole program takes its turns: it makes so many steps on request, and reports its losses at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "gpu" / "programs"))
from talk import say, wait  # noqa: E402


def serve(steps: Callable[[int], None], losses: Callable[[], list[float]] = list) -> None:
    """`steps` makes so many, and returns when the device has finished them. The caller has made the first, slower ones. Steps
    after a sleep are slower too, so an eighth of a sample comes first, untimed."""

    def timed(count: int) -> float:
        steps(max(count // 8, 1))
        start = time.perf_counter_ns()
        steps(count)
        return (time.perf_counter_ns() - start) / count

    serve_samples(timed, losses)


def serve_samples(sample: Callable[[int], float], losses: Callable[[], list[float]] = list) -> None:
    """`sample` makes so many operations and returns the nanoseconds of one."""
    say("ready")
    while True:
        word, _, count = wait().partition(" ")
        if word == "sample":
            say("sample", ns=sample(int(count)))
        else:
            say("finished", losses=losses())
