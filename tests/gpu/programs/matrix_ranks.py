"""DistributedDataParallel by torch.multiprocessing.spawn: two ranks on one GPU over gloo, then one over NCCL, which does not
put two on the same device.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import tempfile
from pathlib import Path

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
# No NVLink multicast: where GPUs are shared by several machines it can put all of them out of service.
os.environ["NCCL_NVLS_ENABLE"] = "0"
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from talk import say  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

_STEPS, _BATCH, _WIDTH = 20, 128, 512
_LONG_S = 60
"""What no run takes that ends: then each rank says on stderr where its threads are."""


def train(rank: int, backend: str, ranks: int, folder: str) -> None:
    faulthandler.dump_traceback_later(_LONG_S)
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(0)
    dist.init_process_group(backend, init_method=f"file://{folder}/{backend}", rank=rank, world_size=ranks)
    layers = [nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, 16)]
    model = DistributedDataParallel(nn.Sequential(*layers).cuda(), device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(7 + rank)
    x = torch.randn(_BATCH, _WIDTH, generator=generator).cuda()
    y = torch.randn(_BATCH, 16, generator=generator).cuda()
    losses = []
    for _ in range(_STEPS):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    total = torch.tensor(losses, device="cuda")
    dist.all_reduce(total)
    Path(folder, f"{backend}.{rank}").write_text(repr([losses, total.tolist()]))
    # The model first: as the last holder of the group it ends it with Python's lock held, and waits for gloo's threads, one of
    # which may wait for that lock (pytorch/pytorch#56297). A ring of references holds it.
    del model, optimizer, loss
    gc.collect()
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for backend, ranks in (("gloo", 2), ("nccl", 1)):
            mp.spawn(train, (backend, ranks, folder), nprocs=ranks)
            said = [Path(folder, f"{backend}.{rank}").read_text() for rank in range(ranks)]
            say("trained", backend=backend, ranks=said)


if __name__ == "__main__":
    main()
