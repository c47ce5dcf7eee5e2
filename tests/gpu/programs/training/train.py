"""Trains a small transformer on synthetic text, deterministic to the last bit: `train.py STEPS`.

The losses stay on the device until the end, so that no step waits for the host. This shows the cost of curb best. At the end it
waits for a command, with all its memory.
"""

from __future__ import annotations

import os
import sys
import time

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # required by torch for determinism

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from talk import say, wait  # noqa: E402
from torch import Tensor, nn  # noqa: E402

_VOCABULARY, _LENGTH, _BATCH, _WIDTH, _HEADS, _LAYERS = 512, 128, 32, 768, 12, 4
_BATCHES, _UNTIMED_STEPS = 16, 20


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(_WIDTH)
        self.into_heads = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.out_of_heads = nn.Linear(_WIDTH, _WIDTH)
        self.before_mlp = nn.LayerNorm(_WIDTH)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Computes the attention step by step, because its fused forms are not all deterministic."""
        batch, length, _ = x.shape
        heads = self.into_heads(self.before_attention(x)).view(batch, length, 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        weights = (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5).masked_fill(mask, float("-inf"))
        mixed = (F.dropout(weights.softmax(-1), 0.1, self.training) @ value).transpose(1, 2).reshape(x.shape)
        x = x + self.out_of_heads(mixed)
        return x + self.mlp(self.before_mlp(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_VOCABULARY, _WIDTH)
        self.places = nn.Parameter(torch.zeros(_LENGTH, _WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(_LAYERS))
        self.head = nn.Linear(_WIDTH, _VOCABULARY)
        self.register_buffer("mask", torch.ones(_LENGTH, _LENGTH, dtype=torch.bool).triu(1))

    def forward(self, text: Tensor) -> Tensor:
        x = self.tokens(text) + self.places
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(x)


def synthetic_text() -> Tensor:
    """Returns text that can be learnt: each token follows from the one before, except for some noise."""
    generator = torch.Generator().manual_seed(3)
    text = torch.randint(_VOCABULARY, (_BATCHES, _BATCH, _LENGTH + 1), generator=generator)
    noise = torch.rand(text.shape, generator=generator) < 0.1
    for i in range(1, _LENGTH + 1):
        text[..., i] = torch.where(noise[..., i], text[..., i], (text[..., i - 1] * 7 + 3) % _VOCABULARY)
    return text


def main(steps: int) -> None:
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    text = synthetic_text()
    losses = []
    start = 0.0
    for step in range(steps):
        if step == _UNTIMED_STEPS:
            torch.cuda.synchronize()
            say("training")
            start = time.perf_counter()
        batch = text[step % len(text)].cuda()
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, _VOCABULARY), batch[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    say("done", losses=torch.stack(losses).tolist(), steps_per_s=(steps - _UNTIMED_STEPS) / seconds)
    wait()


if __name__ == "__main__":
    main(int(sys.argv[1]))
