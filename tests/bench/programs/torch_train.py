"""Trains in PyTorch, with the same losses in each run: `torch_train.py transformer|resnet [graph|compile]`.

`graph`: the whole step is one CUDA graph. `compile`: torch.compile of the model. The losses stay on the device until the end, so
that no step waits for the host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import turns  # noqa: I001  (sets the path of train.py)
from train import Model, synthetic_text
import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FIRST_STEPS = 5
_IMAGES, _SIDE, _CLASSES = 32, 128, 100


def transformer() -> tuple[nn.Module, Tensor, Tensor]:
    """Returns the model, and the inputs and targets of all batches."""
    text = synthetic_text().cuda()
    return Model(), text[..., :-1].contiguous(), text[..., 1:].contiguous()


def resnet() -> tuple[nn.Module, Tensor, Tensor]:
    import torchvision

    generator = torch.Generator().manual_seed(3)
    images = torch.randn((8, _IMAGES, 3, _SIDE, _SIDE), generator=generator).cuda()
    classes = torch.randint(_CLASSES, (8, _IMAGES), generator=generator).cuda()
    return torchvision.models.resnet18(num_classes=_CLASSES), images, classes


def main(name: str, how: str) -> None:
    torch.manual_seed(1)
    # Only warnings, because some gradients of images have no deterministic form. A remark then reports different losses.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    model, inputs, targets = {"transformer": transformer, "resnet": resnet}[name]()
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, capturable=how == "graph")
    called = torch.compile(model) if how == "compile" else model
    losses: list[Tensor] = []

    def train(batch: Tensor, wanted: Tensor) -> Tensor:
        output = called(batch)
        loss = F.cross_entropy(output.flatten(0, -2), wanted.flatten())
        optimizer.zero_grad(set_to_none=how != "graph")
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from zip(inputs, targets)

    step: Callable[[Tensor, Tensor], Tensor] = captured(train, inputs[0], targets[0]) if how == "graph" else train
    data = batches()

    def steps(count: int) -> None:
        for _ in range(count):
            losses.append(step(*next(data)))
        torch.cuda.synchronize()

    steps(_FIRST_STEPS)
    turns.serve(steps, lambda: torch.stack(losses).tolist())


def captured(
    train: Callable[[Tensor, Tensor], Tensor], batch: Tensor, wanted: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    """Captures one step as a graph. The returned step copies its inputs to the addresses that the graph reads."""
    batch, wanted = batch.clone(), wanted.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train(batch, wanted)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = train(batch, wanted)

    def step(next_batch: Tensor, next_wanted: Tensor) -> Tensor:
        batch.copy_(next_batch)
        wanted.copy_(next_wanted)
        graph.replay()
        return loss.clone()

    return step


main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
