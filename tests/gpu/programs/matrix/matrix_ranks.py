"""DistributedDataParallel, started by torch.multiprocessing.spawn: `matrix_ranks.py STEPS BACKEND:RANKS...`.

Rank N uses GPU N, or the only one. Unlike gloo, NCCL does not allow two ranks on one device.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
# No NVLink multicast: where machines share the GPUs of a host, it can put all of these out of service.
os.environ["NCCL_NVLS_ENABLE"] = "0"
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from talk import say  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

_BATCH, _WIDTH = 128, 512
_LONG_S = 60
"""A run that takes longer hangs. Then each rank prints the stacks of its threads on stderr."""


def train(rank: int, steps: int, backend: str, ranks: int, folder: str) -> None:
    faulthandler.dump_traceback_later(_LONG_S)
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    device = rank % torch.cuda.device_count()
    torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{folder}/{backend}", rank=rank, world_size=ranks)
    layers = [nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, 16)]
    model = DistributedDataParallel(nn.Sequential(*layers).cuda(), device_ids=[device])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(7 + rank)
    x = torch.randn(_BATCH, _WIDTH, generator=generator).cuda()
    y = torch.randn(_BATCH, 16, generator=generator).cuda()
    losses = []
    for _ in range(steps):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    total = torch.tensor(losses, device="cuda")
    dist.all_reduce(total)
    Path(folder, f"{backend}.{rank}").write_text(json.dumps([losses, total.tolist()]))
    # Delete the model first; it is in a cycle of references. If it holds the last reference to the group, its end waits for gloo's
    # threads with Python's lock held, and one of these may wait for that lock (pytorch/pytorch#56297).
    del model, optimizer, loss
    gc.collect()
    dist.destroy_process_group()


def main(steps: int, groups: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for backend, _, ranks in (group.partition(":") for group in groups):
            mp.spawn(train, (steps, backend, int(ranks), folder), nprocs=int(ranks))
            said = [json.loads(Path(folder, f"{backend}.{rank}").read_text()) for rank in range(int(ranks))]
            say("trained", backend=backend, losses=[losses for losses, _ in said], totals=[total for _, total in said])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
