"""Small trainings in PyTorch: `matrix_training.py loader|compile|graphs|ipc`. Each reports its losses or sums.

loader   a DataLoader with pinned memory and 4 workers: forked from a process that uses CUDA, then from a forkserver
compile  torch.compile, without and with CUDA graphs; it generates and compiles its kernels in each run
graphs   a step as a CUDA graph, captured by hand and by make_graphed_callables, and the eager step; then graphs in one pool
ipc      CUDA tensors in queues: one spawned process creates them, another changes them in place, and the first reads them
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # required by torch for determinism

import torch  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from talk import say  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

_WIDTH, _BATCH, _SAMPLES = 256, 64, 2048
_STEPS = 60
_TENSORS, _LENGTH = 24, 1 << 20
_LIMIT_S = 60


class Problem:
    """A regression on fixed data."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model: nn.Module = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 16))
        self.model.cuda()
        self.x, self.y = torch.randn(_BATCH, _WIDTH).cuda(), torch.randn(_BATCH, 16).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.called: Callable[[Tensor], Tensor] = self.model

    def step(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = (self.called(self.x) - self.y).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss


# ---- loader ----


class Samples(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(_WIDTH, generator=torch.Generator().manual_seed(index))
        return x, x.sin().expand(16, -1).sum(1)


def loader() -> None:
    torch.use_deterministic_algorithms(True)
    problem = Problem()
    for method in ("fork", "forkserver"):
        batches = DataLoader(
            Samples(), batch_size=_BATCH, num_workers=4, pin_memory=True, multiprocessing_context=method, persistent_workers=True
        )
        losses = []
        for _ in range(2):
            for x, y in batches:
                problem.x, problem.y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
                losses.append(problem.step().detach())
        say("trained", method=method, losses=torch.stack(losses).tolist())


# ---- compile ----


def compiled() -> None:
    for mode in ("default", "reduce-overhead"):
        torch._dynamo.reset()
        problem = Problem()
        problem.called = torch.compile(problem.model, mode=mode)
        say("trained", mode=mode, losses=[round(problem.step().item(), 4) for _ in range(10)])


# ---- graphs ----


def warmed_up() -> Problem:
    """Returns a problem after a few steps on a side stream, which PyTorch's documentation requires before a capture."""
    problem = Problem()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            problem.step()
    torch.cuda.current_stream().wait_stream(side)
    return problem


def captured() -> Callable[[], float]:
    problem = warmed_up()
    graph = torch.cuda.CUDAGraph()
    problem.optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = problem.step()

    def step() -> float:
        graph.replay()
        return loss.item()

    return step


def eager() -> Callable[[], float]:
    problem = warmed_up()
    return lambda: problem.step().item()


def graphed_callable() -> Callable[[], float]:
    problem = Problem()
    problem.called = torch.cuda.make_graphed_callables(problem.model, (problem.x.clone(),))
    return lambda: problem.step().item()


def graphs() -> None:
    for way in (captured, eager, graphed_callable):
        step = way()
        say("trained", way=way.__name__, losses=[step() for _ in range(_STEPS)])
        del step
        torch.cuda.empty_cache()
    # Graphs in one pool are dropped and captured again. Two always live, because PyTorch frees a pool with its last graph.
    pool = torch.cuda.graph_pool_handle()
    live: deque[torch.cuda.CUDAGraph] = deque(maxlen=2)
    sums = []
    for turn in range(12):
        x = torch.full((1 << 20,), float(turn), device="cuda")
        live.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(live[-1], pool=pool):
            y = (x * 3 + 1).double().sum()
        live[-1].replay()
        sums.append(y.item())
    say("pooled", sums=sums)


# ---- ipc ----


def make(full: mp.Queue, changed: mp.Queue, results: mp.Queue) -> None:
    kept = [torch.full((_LENGTH + i,), float(i), device="cuda") for i in range(_TENSORS)]
    torch.cuda.synchronize()
    for tensor in kept:
        full.put(tensor)
    full.put(None)
    changed.get(timeout=_LIMIT_S)
    results.put([[tensor.numel(), tensor.double().sum().item()] for tensor in kept])
    changed.get(timeout=_LIMIT_S)  # the other process has closed its handles


def change(full: mp.Queue, changed: mp.Queue, results: mp.Queue) -> None:
    seen = []
    while (tensor := full.get(timeout=_LIMIT_S)) is not None:
        seen.append(tensor.double().mean().item())
        tensor.mul_(2).add_(1)
        own = torch.empty(_LENGTH, device="cuda")  # this process has memory of its own too
        own.copy_(tensor[:_LENGTH])
        del tensor, own
    torch.cuda.synchronize()
    changed.put("changed")
    results.put(seen)
    torch.cuda.ipc_collect()
    changed.put("closed")


def ipc() -> None:
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
    {"loader": loader, "compile": compiled, "graphs": graphs, "ipc": ipc}[sys.argv[1]]()
