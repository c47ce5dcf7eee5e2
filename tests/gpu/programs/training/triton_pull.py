"""A kernel in Triton, which reads the source of its file, for libraries.py."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

_BLOCK = 1024


# No annotations: Triton reads them.
@triton.jit  # type: ignore[misc]
def _pull(weights, momenta, target, size, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < size
    weight = tl.load(weights + at, mask=inside)
    momentum = 0.9 * tl.load(momenta + at, mask=inside) + weight - tl.load(target + at, mask=inside)
    tl.store(momenta + at, momentum, mask=inside)
    tl.store(weights + at, weight - 0.05 * momentum, mask=inside)


def pull(weights: Any, momenta: Any, target: Any) -> None:
    """Moves `weights` a step towards `target`."""
    size = weights.numel()
    _pull[(triton.cdiv(size, _BLOCK),)](weights, momenta, target, size, _BLOCK)
