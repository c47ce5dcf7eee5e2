"""JAX training that holds more than 8 GiB, deterministic to the last bit: `suspend_jax.py STEPS`.

The step of jax_step.py, of larger layers. Says `training` once it is in full swing, and at the end its losses and a digest of
all that it learnt. Knows nothing of curb. How much JAX takes at its start is for its environment to say.
"""

from __future__ import annotations

import hashlib
import sys

from jax_step import start_of, step  # noqa: I001  (before JAX, for it says how XLA is to compute)
import jax
import numpy as np
from talk import say, wait

_WIDTH, _LAYERS, _BATCH = 8192, 10, 1024  # weights, their gradients and momenta: 30 times 256 MiB
_UNTIMED_STEPS = 3


def main(steps: int) -> None:
    layers, momenta, x, y = start_of(_WIDTH, _LAYERS, _BATCH)
    jitted = jax.jit(step, donate_argnums=(0, 1))
    losses = []
    for number in range(steps):
        if number == _UNTIMED_STEPS:
            jax.block_until_ready(layers)
            say("training")
        layers, momenta, loss = jitted(layers, momenta, x, y)
        losses.append(float(loss))  # keeps the host no more than a step ahead
    digest = hashlib.sha256()
    for weights in layers:
        digest.update(np.asarray(weights).tobytes())
    say("done", losses=losses, digest=digest.hexdigest())
    wait()


main(int(sys.argv[1]))
