"""A program whose framework caches unused memory: `release_states.py NAME`, with a name of frameworks.py.

Prints "base" when it is ready. The next command, "cache", fills the cache; its event is "cached". Then it accepts:
  own      calls the framework's own release: the event "own" with its time
  STATE    fills the cache and enters the state: "cached". The command "stop" leaves it: "stopped"
             sleep    sleeps in read(), as an idle notebook
             compute  makes small steps on the GPU, one after the other
             loader   waits for batches of worker processes, and makes a step for each
             kernel   has launched one kernel that runs for 8 s (PyTorch only)
  large    fills the cache: "cached". After one more command it allocates more than the cache can serve: "large"
  end
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
    """Launches a kernel that runs for about so many seconds. Does not wait for it."""
    import torch

    start, cycles = time.perf_counter(), 200_000_000
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    torch.cuda._sleep(int(cycles * seconds / (time.perf_counter() - start)))


def has_command() -> bool:
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
            say("large", mib=_LARGE_MIB, correct=framework.product())
            del piece
            continue
        if command == "kernel":
            run_for(8.0)
        say("cached")
        if command in ("compute", "loader"):
            while not has_command():
                if command == "loader":
                    batches.get()
                right = framework.product() and right
        wait()
        say("stopped", correct=framework.product() and right)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")  # before CUDA starts
    queue: Any = context.Queue(4)
    for _ in range(2):
        context.Process(target=produce, args=(queue,), daemon=True).start()
    main(queue)
