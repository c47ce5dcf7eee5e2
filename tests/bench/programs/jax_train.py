"""Training in JAX, the same losses in each run: the jitted step of tests/gpu/programs/jax_step.py. Knows nothing of curb."""

from __future__ import annotations

import turns  # noqa: I001  (where jax_step.py is found)
from jax_step import step
import jax
import jax.numpy as jnp

_WIDTH, _LAYERS, _BATCH = 2048, 8, 2048
_FIRST_STEPS = 3


def main() -> None:
    keys = jax.random.split(jax.random.key(1), _LAYERS + 2)
    layers = [jax.random.normal(key, (_WIDTH, _WIDTH)) * 0.01 for key in keys[:_LAYERS]]
    momenta = [jnp.zeros_like(weights) for weights in layers]
    x, y = (jax.random.normal(key, (_BATCH, _WIDTH)) for key in keys[_LAYERS:])
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
