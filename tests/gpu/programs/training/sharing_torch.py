"""Processes that send each other CUDA tensors: `sharing_torch.py queue|loader ROUNDS PAUSE_S`. They do nothing for PAUSE_S in each
round, so that those that nap leave the GPU. Says "shared" with the sums of all rounds.

queue   a process sends tensors through a queue of torch.multiprocessing; another one changes them in place and sends sums back
loader  two workers of a DataLoader make batches on the GPU, on which the program trains
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.multiprocessing as mp
from talk import say
from torch.utils.data import DataLoader, IterableDataset

_WIDTH = 4096


def change(tensors: Any, sums: Any, pause_s: float) -> None:
    """The other process: doubles each tensor that it gets, and rests while it has it."""
    mine = torch.ones(_WIDTH, _WIDTH, device="cuda")
    while (tensor := tensors.get()) is not None:
        tensor.mul_(2).add_(mine)
        time.sleep(pause_s)
        total = tensor.double().sum().item()
        del tensor
        mine.add_(1)
        sums.put(total)


def queue(rounds: int, pause_s: float) -> list[float]:
    context = mp.get_context("spawn")
    tensors, sums = context.Queue(), context.Queue()
    other = context.Process(target=change, args=(tensors, sums, pause_s))
    other.start()
    found = []
    generator = torch.Generator().manual_seed(1)
    for _ in range(rounds):
        sent = torch.randn(_WIDTH, _WIDTH, generator=generator).cuda()
        time.sleep(pause_s)  # out, with tensors that no process has open
        tensors.put(sent)
        found += [sums.get(timeout=180), sent.double().sum().item()]
        del sent
    tensors.put(None)
    other.join()
    return found


class Batches(IterableDataset[torch.Tensor]):
    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = torch.utils.data.get_worker_info()
        generator = torch.Generator().manual_seed(worker.id)
        for _ in range(self._count):
            yield torch.randn(_WIDTH, _WIDTH // 4, generator=generator).cuda()


def loader(rounds: int, pause_s: float) -> list[float]:
    weights = torch.zeros(_WIDTH // 4, 1, device="cuda", requires_grad=True)
    found = []
    for batch in DataLoader(Batches(rounds), batch_size=None, num_workers=2, multiprocessing_context="spawn", prefetch_factor=2):
        time.sleep(pause_s)
        loss = (batch @ weights - 1).square().mean()
        loss.backward()
        with torch.no_grad():
            weights -= 0.01 * weights.grad
        weights.grad = None
        found.append(loss.item())
    return found


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    say("shared", sums={"queue": queue, "loader": loader}[sys.argv[1]](int(sys.argv[2]), float(sys.argv[3])))
