"""CuPy up to the cap, with its default memory pool."""

from __future__ import annotations

import cupy
from fill import run


class Cupy:
    sizes = (256, 32, 2)

    def warm_up(self) -> None:
        self.compute()
        for mib in self.sizes:
            self.holds(self.piece(mib, 1), 1)

    def piece(self, mib: int, mark: int) -> cupy.ndarray:
        piece = cupy.empty(mib << 20, dtype=cupy.uint8)
        piece.fill(mark)
        return piece

    def holds(self, piece: cupy.ndarray, mark: int) -> bool:
        return int(piece[0]) == mark and int(piece[-1]) == mark

    def compute(self) -> bool:
        """A matrix product whose sum is known to the last bit (powers of two)."""
        twos = cupy.full((1024, 1024), 2.0, dtype=cupy.float32)
        return float((twos @ twos).sum()) == 2.0**32


run(Cupy(), cupy.get_default_memory_pool().total_bytes)
