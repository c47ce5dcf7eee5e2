"""A whole program's side of the bench: it makes steps on request, and reports its losses at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

_PROGRAMS = Path(__file__).resolve().parents[2] / "gpu" / "programs"
sys.path += [str(_PROGRAMS), str(_PROGRAMS / "training")]
from talk import say, wait  # noqa: E402


def serve(steps: Callable[[int], None], losses: Callable[[], list[float]] = list) -> None:
    """Answers commands until stdin ends. `steps` makes so many steps and returns when the device has finished them. The caller
    has made the first, slower ones. Steps after a sleep are slower too, so a sample starts with an eighth more, untimed."""

    def timed(count: int) -> float:
        steps(max(count // 8, 1))
        start = time.perf_counter_ns()
        steps(count)
        return (time.perf_counter_ns() - start) / count

    serve_samples(timed, losses)


def serve_samples(sample: Callable[[int], float], losses: Callable[[], list[float]] = list) -> None:
    """Answers commands until stdin ends. `sample` makes so many operations and returns the nanoseconds of one."""
    say("ready")
    while True:
        word, _, count = wait().partition(" ")
        if word == "sample":
            say("sample", ns=sample(int(count)))
        else:
            say("finished", losses=losses())
