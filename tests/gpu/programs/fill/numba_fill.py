"""Fills the cap with Numba, which allocates by cuMemAlloc and opens libcuda itself, through cuda-bindings or ctypes."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from fill import run
from frameworks import Framework
from numba_kernels import cuda


@cuda.jit
def _fill(out: Any, value: Any) -> None:
    index = cuda.grid(1)
    if index < out.size:
        out[index] = value


@cuda.jit
def _scale_add(out: Any, x: Any, y: Any) -> None:
    index = cuda.grid(1)
    if index < out.size:
        out[index] = x[index] * np.float32(3) + y[index]


class Numba(Framework):
    def warm_up(self) -> None:
        self.compute()
        self.holds(self.piece(2, 1), 1)

    def piece(self, mib: int, mark: int) -> Any:
        data = cuda.device_array(mib << 20, dtype=np.uint8)
        _fill[(data.size + 255) // 256, 256](data, mark)
        cuda.synchronize()
        return data

    def holds(self, piece: Any, mark: int) -> bool:
        return bool(piece[:1].copy_to_host()[0] == mark and piece[-1:].copy_to_host()[0] == mark)

    def result(self) -> str:
        x = np.arange(1 << 20, dtype=np.float32) / 7
        y = np.sin(x)
        out = cuda.device_array_like(x)
        _scale_add[(x.size + 255) // 256, 256](out, cuda.to_device(x), cuda.to_device(y))
        return hashlib.sha256(out.copy_to_host().tobytes()).hexdigest()

    def compute(self) -> bool:
        ones = cuda.to_device(np.ones(1 << 20, dtype=np.float32))
        out = cuda.device_array_like(ones)
        _scale_add[(out.size + 255) // 256, 256](out, ones, ones)
        return bool((out.copy_to_host() == 4).all())


run(Numba())
