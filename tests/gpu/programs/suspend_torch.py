"""PyTorch training that holds more than 8 GiB, deterministic to the last bit: `suspend_torch.py STEPS`.

Knows nothing of curb. Says `training` once it is in full swing, and at the end its losses and a digest of all that it
learnt.
"""

from __future__ import annotations

import hashlib
import os
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # what torch asks for before it promises determinism

import torch  # noqa: E402
from talk import say, wait  # noqa: E402
from torch import nn  # noqa: E402

_WIDTH, _LAYERS, _BATCH = 8192, 10, 1024  # weights, their gradients and momenta: 30 times 256 MiB
_UNTIMED_STEPS = 3


def main(steps: int) -> None:
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    layers = [nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh()))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = torch.randn(2, _BATCH, _WIDTH, generator=torch.Generator().manual_seed(2)).cuda().unbind(0)
    losses = []
    for step in range(steps):
        if step == _UNTIMED_STEPS:
            torch.cuda.synchronize()
            say("training")
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # keeps the host no more than a step ahead
    digest = hashlib.sha256()
    for weights in model.parameters():
        digest.update(weights.detach().cpu().numpy().tobytes())
    say("done", losses=losses, digest=digest.hexdigest())
    wait()


main(int(sys.argv[1]))
