"""JAX training that holds more than 8 GiB, deterministic to the last bit: `suspend_jax.py STEPS`.

Knows nothing of curb. Says `training` once it is in full swing, and at the end its losses and a digest of all that it
learnt. How much JAX takes at its start is for its environment to say.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time

# Without it XLA tries several kernels for each product and takes the one that was faster this time, with other roundings.
os.environ["XLA_FLAGS"] = "--xla_gpu_deterministic_ops=true"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from talk import say, wait  # noqa: E402

_WIDTH, _LAYERS, _BATCH = 8192, 10, 1024  # weights, their gradients and momenta: 30 times 256 MiB
_RATE, _KEPT = 0.05, 0.9
_UNTIMED_STEPS = 3

Layers = list[jax.Array]


def loss_of(layers: Layers, x: jax.Array, y: jax.Array) -> jax.Array:
    for weights in layers:
        x = jnp.tanh(x @ weights)
    return jnp.square(x - y).mean()


def step(layers: Layers, momenta: Layers, x: jax.Array, y: jax.Array) -> tuple[Layers, Layers, jax.Array]:
    loss, slopes = jax.value_and_grad(loss_of)(layers, x, y)
    momenta = [_KEPT * momentum + slope for momentum, slope in zip(momenta, slopes, strict=True)]
    return [w - _RATE * momentum for w, momentum in zip(layers, momenta, strict=True)], momenta, loss


def main(steps: int) -> None:
    keys = jax.random.split(jax.random.key(1), _LAYERS + 2)
    layers = [jax.random.normal(key, (_WIDTH, _WIDTH)) * 0.01 for key in keys[:_LAYERS]]
    momenta = [jnp.zeros_like(weights) for weights in layers]
    x, y = (jax.random.normal(key, (_BATCH, _WIDTH)) for key in keys[_LAYERS:])
    jitted = jax.jit(step, donate_argnums=(0, 1))
    losses = []
    for number in range(steps):
        if number == _UNTIMED_STEPS:
            jax.block_until_ready(layers)
            say("training", held_mib=sum(array.nbytes for array in jax.live_arrays()) >> 20)
        layers, momenta, loss = jitted(layers, momenta, x, y)
        losses.append(float(loss))  # keeps the host no more than a step ahead
    digest = hashlib.sha256()
    for weights in layers:
        digest.update(np.asarray(weights).tobytes())
    say("done", losses=losses, digest=digest.hexdigest(), at=time.monotonic())
    wait()


main(int(sys.argv[1]))
