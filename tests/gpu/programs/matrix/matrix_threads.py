"""Threads allocate random sizes, check and free the blocks of other threads, and end; new threads start. All in several rounds."""

from __future__ import annotations

import queue
import random
import threading

import torch
from talk import say

_THREADS, _GENERATIONS, _BLOCKS = 12, 10, 80
_LARGEST = 3 << 20


def take_and_pass(
    seed: int, own_stream: bool, inbox: queue.Queue[tuple[torch.Tensor, int]], next_one: queue.Queue[tuple[torch.Tensor, int]],
    found: list[int], wrong: list[str],
) -> None:  # fmt: skip
    chance = random.Random(seed)
    stream = torch.cuda.Stream() if own_stream else torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        for _ in range(_BLOCKS):
            length, value = chance.randrange(1, chance.choice((300, 70_000, _LARGEST))), chance.randrange(100)
            block = torch.full((length,), value, dtype=torch.int64, device="cuda")
            stream.synchronize()
            next_one.put((block, value))
            del block
            other, value = inbox.get(timeout=60)
            total = int(other.sum().item())
            if total != value * other.numel():
                wrong.append(f"{total} instead of {value} x {other.numel()}")
            found.append(total)
            del other
            if chance.random() < 0.02:
                torch.cuda.empty_cache()


def main() -> None:
    torch.ones(1, device="cuda")
    inboxes: list[queue.Queue[tuple[torch.Tensor, int]]] = [queue.Queue() for _ in range(_THREADS)]
    found: list[int] = []
    wrong: list[str] = []
    for generation in range(_GENERATIONS):
        threads = [
            threading.Thread(
                target=take_and_pass,
                args=(generation * _THREADS + i, i % 2 == 1, inboxes[i], inboxes[(i + 1) % _THREADS], found, wrong),
            )
            for i in range(_THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    say("done", blocks=len(found), total=sum(found), wrong=wrong[:5], left=torch.cuda.memory_allocated())


main()
