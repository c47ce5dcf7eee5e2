"""Training in JAX, the same losses in each run: the jitted step of tests/gpu/programs/jax_step.py. Knows nothing of curb."""

from __future__ import annotations

import turns  # noqa: I001  (where jax_step.py is found)
from jax_step import start_of, step
import jax

_WIDTH, _LAYERS, _BATCH = 2048, 8, 2048
_FIRST_STEPS = 3


def main() -> None:
    layers, momenta, x, y = start_of(_WIDTH, _LAYERS, _BATCH)
    jitted = jax.jit(step)
    losses: list[jax.Array] = []

    def steps(count: int) -> None:
        nonlocal layers, momenta
        for _ in range(count):
            layers, momenta, loss = jitted(layers, momenta, x, y)
            losses.append(loss)
        jax.block_until_ready(layers)

    steps(_FIRST_STEPS)
    turns.serve(steps, lambda: [float(loss) for loss in losses])


main()
