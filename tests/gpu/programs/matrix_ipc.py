"""CUDA tensors through queues of torch.multiprocessing: a spawned process makes them, another one changes them in place, and
the first sees it.
"""

from __future__ import annotations

import torch
import torch.multiprocessing as mp
from talk import say

_TENSORS, _LENGTH = 24, 1 << 20
_LIMIT_S = 60


def make(full: mp.Queue, changed: mp.Queue, results: mp.Queue) -> None:
    kept = [torch.full((_LENGTH + i,), float(i), device="cuda") for i in range(_TENSORS)]
    torch.cuda.synchronize()
    for tensor in kept:
        full.put(tensor)
    full.put(None)
    changed.get(timeout=_LIMIT_S)
    results.put([[tensor.numel(), tensor.double().sum().item()] for tensor in kept])
    changed.get(timeout=_LIMIT_S)  # the other one has let them go


def change(full: mp.Queue, changed: mp.Queue, results: mp.Queue) -> None:
    seen = []
    while (tensor := full.get(timeout=_LIMIT_S)) is not None:
        seen.append(tensor.double().mean().item())
        tensor.mul_(2).add_(1)
        own = torch.empty(_LENGTH, device="cuda")  # its own memory beside
        own.copy_(tensor[:_LENGTH])
        del tensor, own
    torch.cuda.synchronize()
    changed.put("changed")
    results.put(seen)
    torch.cuda.ipc_collect()
    changed.put("let go")


def main() -> None:
    context = mp.get_context("spawn")
    full, changed, results = context.Queue(), context.Queue(), context.Queue()
    processes = [context.Process(target=one, args=(full, changed, results)) for one in (make, change)]
    for process in processes:
        process.start()
    said = sorted((results.get(timeout=_LIMIT_S) for _ in processes), key=str)
    for process in processes:
        process.join(_LIMIT_S)
    say("done", said=said, statuses=[process.exitcode for process in processes])


if __name__ == "__main__":
    main()
