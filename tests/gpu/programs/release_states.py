"""A program whose framework caches memory that it does not use: `release_states.py NAME`, of frameworks.py.

"base" -> (told "cache") fills the cache -> "cached" -> (told "own") calls the framework's own release and times it -> "own"
         -> (told a state) fills the cache again -> "cached" in that state, until told "stop" -> "stopped"
States: sleep (in read(), as an idle notebook), compute (small steps on the GPU, one after the other), loader (waits for
batches of worker processes, a step for each), kernel (PyTorch: one kernel that runs for 8 s).
         -> (told "large") allocates more than one cached piece could serve, while the cache is full -> "large"
"""

from __future__ import annotations

import gc
import multiprocessing
import select
import sys
import time
from typing import Any

from frameworks import FRAMEWORKS, Framework
from talk import say, wait

_PIECES, _PIECE_MIB = 14, 256
_LARGE_MIB = 4608  # more than the whole cache, which may be one piece


def cache(framework: Framework) -> None:
    pieces = [framework.piece(_PIECE_MIB, 1) for _ in range(_PIECES)]
    pieces.clear()
    gc.collect()
    framework.synchronise()


def run_for(seconds: float) -> None:
    """Launches one kernel that runs for about so long, and returns."""
    import torch

    start, cycles = time.perf_counter(), 200_000_000
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    torch.cuda._sleep(int(cycles * seconds / (time.perf_counter() - start)))


def told() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def produce(batches: Any) -> None:
    while True:
        time.sleep(0.02)
        batches.put(bytes(1 << 16))


def main(batches: Any) -> None:
    framework = FRAMEWORKS[sys.argv[1]]()
    framework.product()
    framework.synchronise()
    say("base")
    wait()
    cache(framework)
    say("cached")
    while (command := wait()) != "end":
        if command == "own":
            start = time.perf_counter()
            if framework.own:
                framework.own()
            say("own", ms=round((time.perf_counter() - start) * 1e3, 3) if framework.own else None)
            continue
        cache(framework)
        right = True
        if command == "large":
            say("cached")
            wait()
            piece = framework.piece(_LARGE_MIB, 1)
            say("large", correct=framework.product())
            del piece
            continue
        if command == "kernel":
            run_for(8.0)
        say("cached")
        if command in ("compute", "loader"):
            while not told():
                if command == "loader":
                    batches.get()
                right = framework.product() and right
        wait()
        say("stopped", correct=framework.product() and right)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")  # before CUDA begins
    queue: Any = context.Queue(4)
    for _ in range(2):
        context.Process(target=produce, args=(queue,), daemon=True).start()
    main(queue)
