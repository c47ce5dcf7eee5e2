"""Fills the cap with PyTorch's memory and runs TileLang's kernels on it. TileLang exports stubs of the driver's and the runtime's
functions (libstub_cuda.so, libstub_cudart.so), which open the real libraries on first use."""

from __future__ import annotations

import hashlib
from typing import Any

import tilelang
import tilelang.language as T
import torch
from fill import run
from frameworks import Torch

_COUNT, _BLOCK = 1 << 20, 1024


@tilelang.jit(out_idx=[2])
def _scale_add(count: int, block: int) -> Any:
    @T.prim_func
    def main(x: T.Tensor((count,), "float32"), y: T.Tensor((count,), "float32"), out: T.Tensor((count,), "float32")):
        with T.Kernel(T.ceildiv(count, block), threads=128) as number:
            for index in T.Parallel(block):
                out[number * block + index] = x[number * block + index] * 3.0 + y[number * block + index]

    return main


class TileLang(Torch):
    sizes = (256, 32, 2)

    def __init__(self) -> None:
        super().__init__()
        self._kernel = _scale_add(_COUNT, _BLOCK)

    def result(self) -> str:
        x = (torch.arange(_COUNT, dtype=torch.float32) / 7).cuda()
        return hashlib.sha256(self._kernel(x, x * x).cpu().numpy().tobytes()).hexdigest()

    def compute(self) -> bool:
        ones = torch.ones(_COUNT, device="cuda")
        return bool((self._kernel(ones, ones) == 4).all().item())


run(TileLang())
