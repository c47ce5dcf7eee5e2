"""A whole program's side of the bench: it makes steps on request, and reports its losses at the end. Behind libbench_switch.so
(switch.cpp) a sample has steps by the functions that the program finds, and as many by the driver's own, each in two halves
around the other's or between them: what gets slower or quicker in the sample then counts for both."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PROGRAMS = Path(__file__).resolve().parents[2] / "gpu" / "programs"
sys.path += [str(_PROGRAMS), str(_PROGRAMS / "training")]
from talk import say, wait  # noqa: E402


def serve(steps: Callable[[int], None], losses: Callable[[], list[float]] = list) -> None:
    """Answers commands until stdin ends. `steps` makes so many steps and returns when the device has finished them. The caller
    has made the first, slower ones. Steps after a sleep or a switch are slower too, so an eighth more comes first, untimed."""
    switch = getattr(ctypes.CDLL(None), "bench_switch", None)
    if switch:
        switch.restype = ctypes.c_char_p
    direct_first = True

    def timed(count: int) -> float:
        steps(max(count // 8, 1))
        start = time.perf_counter_ns()
        steps(count)
        return (time.perf_counter_ns() - start) / count

    def sample(count: int) -> dict[str, Any]:
        nonlocal direct_first
        if switch is None:
            return {"ns": timed(count), "no_direct": "libbench_switch.so is not preloaded"}
        if why := switch(0):
            return {"ns": timed(count), "no_direct": why.decode()}
        direct_first = not direct_first
        times = {"ns": 0.0, "direct_ns": 0.0}
        for direct in (direct_first, not direct_first, not direct_first, direct_first):
            switch(direct)
            times["direct_ns" if direct else "ns"] += timed((count + 1) // 2) / 2
        switch(0)
        return times

    serve_samples(sample, losses)


def serve_samples(sample: Callable[[int], dict[str, Any]], losses: Callable[[], list[float]] = list) -> None:
    """Answers commands until stdin ends. `sample` makes so many operations and returns the members of the answer (lane.py)."""
    say("ready")
    while True:
        word, _, count = wait().partition(" ")
        if word == "sample":
            say("sample", **sample(int(count)))
        else:
            say("finished", losses=losses())
