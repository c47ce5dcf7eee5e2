"""One of the ranks that torchrun starts: `job_ranks.py STEPS MIB BACKEND`.

DistributedDataParallel over gloo with all ranks on one GPU, or over nccl, which does not allow two ranks on one device, with rank
N on GPU N. After every fifth step the ranks allocate MIB of each GPU, one after the other, and leave it in PyTorch's cache. The
caches of all do not fit under the job's cap. Rank 0 reports the losses of all.
"""

from __future__ import annotations

import os
import sys

import ranks  # before torch
import torch
import torch.distributed as dist
from talk import say

_EVERY = 5


def main(steps: int, mib: int, backend: str) -> None:
    gpus = torch.cuda.device_count()
    ranks.start(int(os.environ["LOCAL_RANK"]) % gpus)
    dist.init_process_group(backend)
    rank, count = dist.get_rank(), dist.get_world_size()
    # The turns need a barrier on the host: a rank that waits in nccl's barrier has a kernel on the GPU, and cannot free its cache
    # for the others until that ends.
    turns = dist.new_group(backend="gloo")
    training = ranks.Training(rank)
    losses = []
    for number in range(steps):
        losses.append(training.step())
        if number % _EVERY == 0:
            for turn in range(count):
                if turn == rank:
                    for gpu in range(gpus):
                        torch.ones(mib << 18, device=f"cuda:{gpu}").sum().item()
                dist.barrier(turns)
    all_losses: list[list[float]] = [[] for _ in range(count)]
    dist.all_gather_object(all_losses, losses, turns)
    if rank == 0:
        say("trained", losses=all_losses)
    dist.barrier(turns)
    dist.destroy_process_group()


main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
