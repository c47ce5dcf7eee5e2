"""PyTorch up to the cap. The allocator is chosen by PYTORCH_ALLOC_CONF, as users choose it.

With the argument `cold` nothing is warmed up: the memory is taken first and the code is loaded afterwards, at the cap.
"""

from __future__ import annotations

import sys

import torch
from fill import run
from torch import nn


class Torch:
    sizes = (256, 32, 2, 1)

    def __init__(self) -> None:
        self._model: nn.Module | None = None

    def warm_up(self) -> None:
        for _ in range(3):
            self.compute()
        for mib in self.sizes:
            self.holds(self.piece(mib, 1), 1)
        torch.cuda.synchronize()

    def piece(self, mib: int, mark: int) -> torch.Tensor:
        return torch.empty(mib << 20, dtype=torch.uint8, device="cuda").fill_(mark)

    def holds(self, piece: torch.Tensor, mark: int) -> bool:
        return piece[0].item() == mark and piece[-1].item() == mark

    def compute(self) -> bool:
        """A matrix product whose sum is known to the last bit (powers of two), and a training step."""
        twos = torch.full((1024, 1024), 2.0, device="cuda")
        exact = (twos @ twos).sum().item() == 2.0**32
        return exact and self._train() < 1e3

    def _train(self) -> float:
        if self._model is None:
            self._model = nn.TransformerEncoderLayer(256, 8, dropout=0.0, batch_first=True).cuda()
            self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._optimizer.zero_grad()
        loss = self._model(torch.randn(8, 64, 256, device="cuda")).square().mean()
        loss.backward()
        self._optimizer.step()
        return loss.item()


class ColdTorch(Torch):
    def warm_up(self) -> None:
        torch.cuda.init()

    def piece(self, mib: int, mark: int) -> torch.Tensor:
        return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")

    def holds(self, piece: torch.Tensor, mark: int) -> bool:
        return True


run(ColdTorch() if "cold" in sys.argv else Torch(), torch.cuda.memory_reserved)
