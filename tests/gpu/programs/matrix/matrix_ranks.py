"""DistributedDataParallel, started by torch.multiprocessing.spawn: `matrix_ranks.py STEPS BACKEND:RANKS...`.

Rank N uses GPU N, or the only one. Unlike gloo, NCCL does not allow two ranks on one device.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import sys
import tempfile
from pathlib import Path

import ranks  # before torch
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from talk import say

_LONG_S = 60
"""A run that takes longer hangs. Then each rank prints the stacks of its threads on stderr."""


def train(rank: int, steps: int, backend: str, count: int, folder: str) -> None:
    faulthandler.dump_traceback_later(_LONG_S)
    ranks.start(rank % torch.cuda.device_count())
    dist.init_process_group(backend, init_method=f"file://{folder}/{backend}", rank=rank, world_size=count)
    training = ranks.Training(rank)
    losses = [training.step() for _ in range(steps)]
    total = torch.tensor(losses, device="cuda")
    dist.all_reduce(total)
    Path(folder, f"{backend}.{rank}").write_text(json.dumps([losses, total.tolist()]))
    del training
    gc.collect()
    dist.destroy_process_group()


def main(steps: int, groups: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for backend, _, number in (group.partition(":") for group in groups):
            count = int(number)
            mp.spawn(train, (steps, backend, count, folder), nprocs=count)
            said = [json.loads(Path(folder, f"{backend}.{rank}").read_text()) for rank in range(count)]
            say("trained", backend=backend, losses=[losses for losses, _ in said], totals=[total for _, total in said])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
