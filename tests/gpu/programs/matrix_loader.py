"""Trains from a DataLoader with 4 workers and pinned memory, forked from a process that uses CUDA and by a forkserver."""

from __future__ import annotations

import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch  # noqa: E402
from talk import say  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

_WIDTH, _BATCH, _SAMPLES = 256, 64, 2048


class Samples(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(_WIDTH, generator=generator)
        return x, x.sin().sum(0, keepdim=True)


def train(model: nn.Module, method: str) -> list[float]:
    loader = DataLoader(
        Samples(), batch_size=_BATCH, num_workers=4, pin_memory=True, multiprocessing_context=method, persistent_workers=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(2):
        for x, y in loader:
            loss = (model(x.cuda(non_blocking=True)) - y.cuda(non_blocking=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return torch.stack(losses).tolist()


def main() -> None:
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    model = nn.Sequential(nn.Linear(_WIDTH, 512), nn.GELU(), nn.Linear(512, 1)).cuda()
    for method in ("fork", "forkserver"):
        say("trained", method=method, losses=train(model, method))


if __name__ == "__main__":
    main()
