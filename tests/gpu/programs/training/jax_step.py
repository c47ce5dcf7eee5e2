"""Trains a perceptron in JAX with a jitted step, deterministic to the last bit: `jax_step.py STEPS`.

The environment selects JAX's allocator. The arrays live until the command after the training. Then the program waits, and only
JAX's cache is left.
"""

from __future__ import annotations

import os
import sys
import time

# Otherwise XLA tries several kernels for each product and takes the fastest of this run, whose roundings may differ.
os.environ["XLA_FLAGS"] = "--xla_gpu_deterministic_ops=true"

import jax
import jax.numpy as jnp
from talk import say, wait

_WIDTH, _LAYERS, _BATCH = 4096, 8, 4096
_RATE, _KEPT = 0.3, 0.9
_UNTIMED_STEPS = 5

Layers = list[jax.Array]


def loss_of(layers: Layers, x: jax.Array, y: jax.Array) -> jax.Array:
    for weights in layers[:-1]:
        x = x + jnp.tanh(x @ weights)
    return jnp.square(x @ layers[-1] - y).mean()


def step(layers: Layers, momenta: Layers, x: jax.Array, y: jax.Array) -> tuple[Layers, Layers, jax.Array]:
    loss, slopes = jax.value_and_grad(loss_of)(layers, x, y)
    momenta = [_KEPT * momentum + slope for momentum, slope in zip(momenta, slopes, strict=True)]
    return [w - _RATE * momentum for w, momentum in zip(layers, momenta, strict=True)], momenta, loss


def start_of(width: int, many: int, batch: int) -> tuple[Layers, Layers, jax.Array, jax.Array]:
    """Returns `many` layers of that width, their momenta, inputs and targets."""
    keys = jax.random.split(jax.random.key(1), many + 2)
    layers = [jax.random.normal(key, (width, width)) * 0.01 for key in keys[:many]]
    momenta = [jnp.zeros_like(weights) for weights in layers]
    x, y = (jax.random.normal(key, (batch, width)) for key in keys[many:])
    return layers, momenta, x, y


def main(steps: int) -> None:
    layers, momenta, x, y = start_of(_WIDTH, _LAYERS, _BATCH)
    jitted = jax.jit(step)
    losses = []
    start = 0.0
    for number in range(steps):
        if number == _UNTIMED_STEPS:
            jax.block_until_ready(layers)
            start = time.perf_counter()
        layers, momenta, loss = jitted(layers, momenta, x, y)
        losses.append(loss)
    jax.block_until_ready(layers)
    seconds = time.perf_counter() - start
    said = [float(loss) for loss in losses]
    say("trained", losses=said, steps_per_s=(steps - _UNTIMED_STEPS) / seconds)
    wait()
    for array in jax.live_arrays():
        array.delete()
    say("deleted")
    wait()


if __name__ == "__main__":
    main(int(sys.argv[1]))
