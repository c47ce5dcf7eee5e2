"""Times pairs of torch.empty and del, one by one, for each size: `torch_alloc.py PAIRS`. Reports medians and 99th percentiles in
microseconds."""

from __future__ import annotations

import sys
import time

import torch
from talk import say

_SIZES = {"4 KiB": 4 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "2 MiB": 2 << 20, "32 MiB": 32 << 20, "256 MiB": 256 << 20}
_SIZES |= {"1 GiB": 1 << 30, "8 GiB": 8 << 30}


def pair(size: int) -> float:
    start = time.perf_counter_ns()
    tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
    del tensor
    return (time.perf_counter_ns() - start) / 1e3


def main() -> None:
    pairs = int(sys.argv[1])
    torch.empty(1, device="cuda")
    figures = []
    for name, size in _SIZES.items():
        count = max(pairs // 50, 20) if size >= 4 * 2**30 else pairs
        for _ in range(3):
            pair(size)
        times = sorted(pair(size) for _ in range(count))
        figures.append({"size": name, "median_us": times[count // 2], "p99_us": times[count * 99 // 100]})
    say("done", torch=figures)


main()
