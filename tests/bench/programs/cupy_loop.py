"""A power iteration in CuPy with temporaries in each step: `cupy_loop.py [uncached]`.

`uncached`: without CuPy's pool, so that each temporary is a cudaMalloc and a cudaFree. Knows nothing of curb.
"""

from __future__ import annotations

import sys

import cupy
import turns

_WIDTH = 2048
_FIRST_STEPS = 20


def main(cached: bool) -> None:
    if not cached:
        cupy.cuda.set_allocator(None)
    random = cupy.random.RandomState(1)
    matrix = random.standard_normal((_WIDTH, _WIDTH), dtype=cupy.float32)
    vectors = random.standard_normal((_WIDTH, 64), dtype=cupy.float32)
    losses = []

    def steps(count: int) -> None:
        nonlocal vectors
        for _ in range(count):
            turned = matrix @ vectors
            length = cupy.sqrt((turned * turned).sum(axis=0, keepdims=True))
            fresh = turned / length
            losses.append(abs(fresh - vectors).max())
            vectors = cupy.tanh(fresh) + 0.1 * vectors
        cupy.cuda.Device().synchronize()

    steps(_FIRST_STEPS)
    turns.serve(steps, lambda: [float(loss) for loss in losses])


main("uncached" not in sys.argv)
