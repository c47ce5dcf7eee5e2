"""Fills the cap with PyTorch's memory and runs Triton's kernels on it. Triton's launcher is linked with libcuda and loads its own
modules."""

from __future__ import annotations

import hashlib

import torch
import triton
import triton.language as tl
from fill import run
from frameworks import Torch


@triton.jit
def _scale_add(out, x, y, count, block: tl.constexpr):  # Triton reads the annotations, and accepts only its own
    index = tl.program_id(0) * block + tl.arange(0, block)
    inside = index < count
    tl.store(out + index, tl.load(x + index, mask=inside) * 3 + tl.load(y + index, mask=inside), mask=inside)


class Triton(Torch):
    sizes = (256, 32, 2)

    def scaled(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        _scale_add[(triton.cdiv(x.numel(), 1024),)](out, x, y, x.numel(), block=1024)
        return out

    def result(self) -> str:
        x = (torch.arange(1 << 20, dtype=torch.float32) / 7).cuda()
        return hashlib.sha256(self.scaled(x, x * x).cpu().numpy().tobytes()).hexdigest()

    def compute(self) -> bool:
        ones = torch.ones(1 << 20, device="cuda")
        return bool((self.scaled(ones, ones) == 4).all().item())


run(Triton())
