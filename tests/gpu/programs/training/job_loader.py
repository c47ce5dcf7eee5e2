"""Trains with a DataLoader whose workers use the GPU too: `job_loader.py WORKERS BATCHES MIB`.

Each worker allocates MIB for each batch and leaves it in its cache. Reports the losses and the sums of the batches.
"""

from __future__ import annotations

import os
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch  # noqa: E402
from talk import say, wait  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

_WIDTH = 512
_DIFFERENT = 4  # batches come again, so that their losses fall


class Augmented(Dataset[torch.Tensor]):
    def __init__(self, batches: int, mib: int) -> None:
        self._batches, self._mib = batches, mib

    def __len__(self) -> int:
        return self._batches

    def __getitem__(self, index: int) -> torch.Tensor:
        torch.use_deterministic_algorithms(True)
        work = torch.ones(self._mib << 18, device="cuda")
        x = torch.randn(64, _WIDTH, generator=torch.Generator().manual_seed(index % _DIFFERENT)).cuda()
        return (x.tanh() * work[:1]).cpu()


def main(workers: int, batches: int, mib: int) -> None:
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    model = nn.Linear(_WIDTH, _WIDTH).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=50.0)
    loader = DataLoader(Augmented(batches, mib), num_workers=workers, multiprocessing_context="spawn", batch_size=None)
    sums, losses = [], []
    for x in loader:
        sums.append(x.double().sum().item())
        loss = (model(x.cuda()) - x.cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    say("trained", losses=[losses, sums])
    wait()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
