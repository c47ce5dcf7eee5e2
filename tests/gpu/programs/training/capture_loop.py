"""Trains under CUDA graph capture while the test sends SIGUSR1, then trains the same number of steps eagerly, and compares:
`capture_loop.py SECONDS`.

Each round captures 40 training steps in a new graph, so that captures take much of the time and signals arrive in them. Reports
the times of the captures.
"""

from __future__ import annotations

import sys
import time

import torch
from talk import say, wait

_STEPS_IN_A_CAPTURE = 40
_RATE = 0.05


class Problem:
    """A regression, solved by gradient descent from a fixed start."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)

        def matrix(rows: int, columns: int, scale: float) -> torch.Tensor:
            return (torch.randn(rows, columns, generator=generator) * scale).cuda()

        self.x = matrix(256, 128, 1.0)
        self.y = matrix(256, 16, 1.0)
        self.weights = [matrix(128, 256, 0.05).requires_grad_(), matrix(256, 16, 0.05).requires_grad_()]

    def loss(self) -> torch.Tensor:
        first, second = self.weights
        return (torch.tanh(self.x @ first) @ second - self.y).square().mean()

    def step(self) -> None:
        slopes = torch.autograd.grad(self.loss(), self.weights)
        with torch.no_grad():
            for weight, slope in zip(self.weights, slopes, strict=True):
                weight.sub_(slope, alpha=_RATE)


def warm_up() -> None:
    """Makes a few steps on a side stream, which PyTorch's documentation requires before a capture."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        problem = Problem()
        for _ in range(3):
            problem.step()
    torch.cuda.synchronize()


def train_captured(seconds: float) -> tuple[Problem, list[tuple[float, float]]]:
    problem = Problem()
    spans = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            begin = time.monotonic()
            for _ in range(_STEPS_IN_A_CAPTURE):
                problem.step()
            spans.append((begin, time.monotonic()))
        graph.replay()
        torch.empty(64 << 20, dtype=torch.uint8, device="cuda")  # fills the cache for the next release
        torch.cuda.synchronize()
    return problem, spans


def main(seconds: float) -> None:
    # PyTorch's own thread may drop a tensor of a capture after the capture's end. Its cudaMallocAsync then ends the program, also
    # without curb (six of six on two busy cores).
    torch.autograd.set_multithreading_enabled(False)
    warm_up()
    say("warm")
    wait()
    captured, spans = train_captured(seconds)
    say("captured", spans=spans)
    wait()
    eager = Problem()
    start = eager.loss().item()
    for _ in range(len(spans) * _STEPS_IN_A_CAPTURE):
        eager.step()
    pairs = list(zip(captured.weights, eager.weights, strict=True))
    say(
        "done",
        captures=len(spans),
        steps=len(spans) * _STEPS_IN_A_CAPTURE,
        losses=[start, eager.loss().item(), captured.loss().item()],
        identical=all(torch.equal(a, b) for a, b in pairs),
        close=all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in pairs),
    )


main(float(sys.argv[1]))
