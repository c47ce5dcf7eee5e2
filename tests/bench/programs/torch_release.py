"""Releases PyTorch's cache on request: `torch_release.py inside|signal`.

`inside`: by torch.cuda.empty_cache(). `signal`: by SIGUSR1 to itself; the time ends when PyTorch's own figure shows no cache.
The cache is 3.5 GiB in 180 segments, as after a training.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import turns

_SEGMENTS, _BYTES = 180, 20 << 20
_LONGEST_NS = 10_000_000_000


def fill() -> None:
    pieces = [torch.empty(_BYTES, dtype=torch.uint8, device="cuda") for _ in range(_SEGMENTS)]
    torch.cuda.synchronize()
    del pieces


def inside() -> int:
    start = time.perf_counter_ns()
    torch.cuda.empty_cache()
    return time.perf_counter_ns() - start


def by_signal() -> int:
    start = time.perf_counter_ns()
    os.kill(os.getpid(), signal.SIGUSR1)
    while torch.cuda.memory_reserved() >= _BYTES:
        time.sleep(0.0002)
        if time.perf_counter_ns() - start > _LONGEST_NS:
            sys.exit("PyTorch's cache was not released within 10 s")
    return time.perf_counter_ns() - start


def main(how: str) -> None:
    release = {"inside": inside, "signal": by_signal}[how]

    def sample(count: int) -> dict[str, float]:
        total = 0
        for _ in range(count):
            fill()
            total += release()
        return {"ns": total / count}

    torch.empty(1, device="cuda")
    turns.serve_samples(sample)


main(sys.argv[1])
