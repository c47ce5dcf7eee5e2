"""One of the ranks that torchrun starts: `job_ranks.py STEPS MIB BACKEND`.

DistributedDataParallel over gloo with all ranks on one GPU, or over nccl, which does not allow two ranks on one device, with rank
N on GPU N. After every fifth step the ranks allocate MIB of each GPU, one after the other, and leave it in PyTorch's cache. The
caches of all do not fit under the job's cap. Rank 0 reports the losses of all.
"""

from __future__ import annotations

import os
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
# No NVLink multicast: where machines share the GPUs of a host, it can put all of these out of service.
os.environ["NCCL_NVLS_ENABLE"] = "0"
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from talk import say  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

_BATCH, _WIDTH = 128, 512
_EVERY = 5


def main(steps: int, mib: int, backend: str) -> None:
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    gpus = torch.cuda.device_count()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % gpus)
    dist.init_process_group(backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # The turns need a barrier on the host: a rank that waits in nccl's barrier has a kernel on the GPU, and cannot free its cache
    # for the others until that ends.
    turns = dist.new_group(backend="gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, 16)).cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(7 + rank)
    x = torch.randn(_BATCH, _WIDTH, generator=generator).cuda()
    y = torch.randn(_BATCH, 16, generator=generator).cuda()
    losses = []
    for number in range(steps):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if number % _EVERY == 0:
            for turn in range(ranks):
                if turn == rank:
                    for gpu in range(gpus):
                        torch.ones(mib << 18, device=f"cuda:{gpu}").sum().item()
                dist.barrier(turns)
    all_losses: list[list[float]] = [[] for _ in range(ranks)]
    dist.all_gather_object(all_losses, losses, turns)
    if rank == 0:
        say("trained", losses=all_losses)
    dist.barrier(turns)
    dist.destroy_process_group()


main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
