"""A training step as a CUDA graph, captured by hand and by make_graphed_callables, and replayed; and as the eager step."""

from __future__ import annotations

import os
from collections import deque

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch  # noqa: E402
from talk import say  # noqa: E402
from torch import Tensor, nn  # noqa: E402

_STEPS, _BATCH, _WIDTH = 60, 128, 512


class Problem:
    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh(), nn.Linear(_WIDTH, 16)).cuda()
        self.x, self.y = torch.randn(_BATCH, _WIDTH).cuda(), torch.randn(_BATCH, 16).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def step(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = (self.model(self.x) - self.y).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def weights(self) -> float:
        return sum(p.double().abs().sum().item() for p in self.model.parameters())


def warmed_up() -> Problem:
    """As PyTorch's documentation asks: a few steps on a side stream before a capture."""
    problem = Problem()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            problem.step()
    torch.cuda.current_stream().wait_stream(side)
    return problem


def captured() -> dict[str, object]:
    problem = warmed_up()
    graph = torch.cuda.CUDAGraph()
    problem.optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = problem.step()
    losses = []
    for _ in range(_STEPS):
        graph.replay()
        losses.append(loss.item())
    return {"losses": losses, "weights": problem.weights()}


def eager() -> dict[str, object]:
    problem = warmed_up()
    losses = [problem.step().item() for _ in range(_STEPS)]
    return {"losses": losses, "weights": problem.weights()}


def graphed_callable() -> dict[str, object]:
    problem = Problem()
    problem.model = torch.cuda.make_graphed_callables(problem.model, (problem.x.clone(),))
    losses = [problem.step().item() for _ in range(_STEPS)]
    return {"losses": losses, "weights": problem.weights()}


def main() -> None:
    for way in (captured, eager, graphed_callable):
        say("trained", way=way.__name__, **way())
        torch.cuda.empty_cache()
    # Graphs that share a pool, and are dropped and captured anew. PyTorch forgets a pool with its last graph.
    pool = torch.cuda.graph_pool_handle()
    graphs: deque[torch.cuda.CUDAGraph] = deque(maxlen=2)
    sums = []
    for turn in range(12):
        x = torch.full((1 << 20,), float(turn), device="cuda")
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], pool=pool):
            y = (x * 3 + 1).double().sum()
        graphs[-1].replay()
        sums.append(y.item())
    say("pooled", sums=sums)


main()
