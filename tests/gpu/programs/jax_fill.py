"""JAX up to the cap. The allocator is chosen by XLA_PYTHON_CLIENT_ALLOCATOR, as users choose it."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
from fill import run

# The default allocator (BFC) waits 10 s before each refusal, so it is refused once; it has taken all that it ever will
# at its start, so that a close fill would show nothing.
_SIZES = (256, 16, 2) if "XLA_PYTHON_CLIENT_ALLOCATOR" in os.environ else (128,)


class Jax:
    sizes = _SIZES

    def __init__(self) -> None:
        self._product_sum = jax.jit(lambda a: (a @ a).sum())
        self._grad_step = jax.jit(_train_step)
        self._weights = [jnp.full((512, 512), 0.01), jnp.full((512, 512), 0.01)]

    def warm_up(self) -> None:
        for _ in range(3):
            self.compute()
        self.piece(self.sizes[0], 1)

    def piece(self, mib: int, mark: int) -> jax.Array:
        return jax.device_put(np.full(mib << 18, mark, np.float32)).block_until_ready()

    def holds(self, piece: jax.Array, mark: int) -> bool:
        """Read back whole, because indexing would compile and load a kernel; only the large ones, for time."""
        if piece.nbytes < self.sizes[0] << 20:
            return True
        data = np.asarray(piece)
        return bool(data[0] == mark and data[-1] == mark)

    def compute(self) -> bool:
        """A matrix product whose sum is known to the last bit (powers of two), and a training step."""
        twos = jax.device_put(np.full((1024, 1024), 2.0, np.float32))
        exact = float(self._product_sum(twos)) == 2.0**32
        self._weights, loss = self._grad_step(self._weights, jax.device_put(np.ones((64, 512), np.float32)))
        return exact and float(loss) < 1e3


def _train_step(weights: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    def loss_of(layers: list[jax.Array]) -> jax.Array:
        return jnp.square(jnp.tanh(x @ layers[0]) @ layers[1]).mean()

    loss, slopes = jax.value_and_grad(loss_of)(weights)
    return [w - 0.01 * slope for w, slope in zip(weights, slopes, strict=True)], loss


run(Jax())
