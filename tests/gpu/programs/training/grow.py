"""A training that keeps more and more memory, like one that never frees its features or losses.

Commands: `take N` (allocates N pieces, with a training step before each), `drop` (frees all), `end`.
"""

from __future__ import annotations

import time

import torch
from talk import say, wait
from torch import Tensor, nn

_PIECE = 256 << 20


class Training:
    def __init__(self) -> None:
        self._model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 1)).cuda()
        self._optimizer = torch.optim.AdamW(self._model.parameters())

    def step(self) -> float:
        self._optimizer.zero_grad()
        loss = (self._model(torch.ones(256, 512, device="cuda")) - 1).square().mean()
        loss.backward()
        self._optimizer.step()
        return loss.item()


def piece(size: int, mark: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda").fill_(mark)


def take(training: Training, kept: list[Tensor], pieces: int) -> None:
    """Allocates pieces until one is refused. Reports the time of each, which shows if it waited."""
    seconds, refused, losses = [], 0, []
    for _ in range(pieces):
        losses.append(training.step())
        begin = time.monotonic()
        try:
            kept.append(piece(_PIECE, len(kept) % 100 + 1))
            torch.cuda.synchronize()
        except torch.OutOfMemoryError:
            refused += 1
            break
        finally:
            seconds.append(time.monotonic() - begin)
    intact = all(one[0].item() == one[-1].item() == index % 100 + 1 for index, one in enumerate(kept))
    say("took", pieces=len(kept), refused=refused, seconds=seconds, intact=intact, losses=[losses[0], losses[-1]])


def main() -> None:
    first_use = time.monotonic()
    torch.cuda.init()
    training = Training()
    training.step()
    assert piece(1, 1)[0].item() == 1  # loads the kernels that read and write a piece
    say("ready", first_use=first_use)
    kept: list[Tensor] = []
    while (command := wait()) != "end":
        if command == "drop":
            kept.clear()
            say("dropped")
        else:
            take(training, kept, int(command.split()[1]))


main()
