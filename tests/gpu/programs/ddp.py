"""PyTorch's DistributedDataParallel over NCCL on two GPUs, deterministic to the last bit: `ddp.py STEPS`.

Starts itself once for each rank. Knows nothing of curb.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

_RANKS = 2
_UNTIMED_STEPS = 10
_BATCH, _WIDTH = 256, 1024


def launch(steps: str) -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(_RANKS),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # what torch asks for before it promises determinism
        # No NVLink multicast: where GPUs are shared by several machines it can put all of them out of service.
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, steps], env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(_RANKS)
    ]
    while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
        time.sleep(0.05)
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()  # it would wait for the one that failed
    return max(abs(rank.wait()) for rank in ranks)


def train(rank: int, steps: int) -> None:
    import torch
    import torch.distributed as dist
    from talk import say
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    layers = [nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, 16)]
    model = DistributedDataParallel(nn.Sequential(*layers).cuda(), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(7 + rank)
    x = torch.randn(_BATCH, _WIDTH, generator=generator).cuda()
    y = torch.randn(_BATCH, 16, generator=generator).cuda()
    losses = []
    start = 0.0
    for step in range(steps):
        if step == _UNTIMED_STEPS:
            torch.cuda.synchronize()
            start = time.perf_counter()
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    of_all = [torch.zeros(steps, device="cuda") for _ in range(_RANKS)]
    dist.all_gather(of_all, torch.stack(losses))
    if rank == 0:
        say("done", losses=[of_one.tolist() for of_one in of_all], step_ms=seconds * 1e3 / (steps - _UNTIMED_STEPS))
    dist.destroy_process_group()


if "RANK" in os.environ:
    train(int(os.environ["RANK"]), int(sys.argv[1]))
else:
    sys.exit(launch(sys.argv[1]))
