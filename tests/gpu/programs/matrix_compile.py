"""torch.compile of a small model, with kernels that are generated and compiled here, and with CUDA graphs around them."""

from __future__ import annotations

import torch
from talk import say
from torch import nn

_STEPS, _BATCH, _WIDTH = 10, 64, 256


def train(mode: str) -> list[float]:
    torch.manual_seed(5)
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 16)).cuda()
    compiled = torch.compile(model, mode=mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = torch.randn(_BATCH, _WIDTH).cuda(), torch.randn(_BATCH, 16).cuda()
    losses = []
    for _ in range(_STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = (compiled(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 4))
    return losses


for mode in ("default", "reduce-overhead"):
    say("trained", mode=mode, losses=train(mode))
