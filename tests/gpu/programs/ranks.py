"""A small training by DistributedDataParallel, and the variables that the ranks need. To be imported before torch."""

from __future__ import annotations

import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
# No NVLink multicast: where machines share the GPUs of a host, it can put all of these out of service.
os.environ["NCCL_NVLS_ENABLE"] = "0"
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

_BATCH, _WIDTH = 128, 512


def start(gpu: int) -> None:
    """Makes this rank use the GPU, with the same weights as the others. Call it before init_process_group()."""
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(gpu)


class Training:
    """The model on this rank's GPU, with data of its own. If it holds the last reference to the process group, its end waits for
    gloo's threads with Python's lock held, and one of these may wait for that lock (pytorch/pytorch#56297): delete it, and collect
    the cycle that holds its model, before destroy_process_group()."""

    def __init__(self, rank: int) -> None:
        layers = [nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, 16)]
        self._model = DistributedDataParallel(nn.Sequential(*layers).cuda(), device_ids=[torch.cuda.current_device()])
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3)
        generator = torch.Generator().manual_seed(7 + rank)
        self._x = torch.randn(_BATCH, _WIDTH, generator=generator).cuda()
        self._y = torch.randn(_BATCH, 16, generator=generator).cuda()

    def step(self) -> float:
        """Trains a step and returns its loss."""
        loss = (self._model(self._x) - self._y).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.item()
