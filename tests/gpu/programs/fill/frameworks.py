"""PyTorch, JAX, TensorFlow and CuPy as fill.py and release_states.py use them. The environment selects the allocator."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any


class Framework:
    sizes: tuple[int, ...] = (256, 32, 2)
    """MiB of the pieces, the largest first. When one size is refused, the next one is tried."""
    own: Callable[[], object] | None = None
    """The framework's own call that releases its cache. None: it has none."""
    reserved: Callable[[], int] | None = None
    """Returns the bytes that its allocator holds. None: it has no such figure."""
    result: Callable[[], str] | None = None
    """Returns a digest of a computation, to compare two runs."""

    def piece(self, mib: int, mark: int) -> Any:
        """Allocates a piece and fills it with `mark`."""
        raise NotImplementedError

    def holds(self, piece: Any, mark: int) -> bool:
        """Returns true if the piece still has its mark."""
        raise NotImplementedError

    def product(self) -> bool:
        """Computes a matrix product of powers of two. Returns true if its sum is exact."""
        raise NotImplementedError

    def train(self) -> float:
        """Makes a training step. Returns its loss."""
        return 0.0

    def compute(self) -> bool:
        return self.product() and self.train() < 1e3

    def warm_up(self) -> None:
        for _ in range(3):
            self.compute()
        for mib in self.sizes:
            self.holds(self.piece(mib, 1), 1)

    def synchronise(self) -> None:
        """Waits for the device. Not for JAX and TensorFlow: a synchronisation makes their pools return their unused memory, and
        no cache would be left."""


class Torch(Framework):
    sizes = (256, 32, 2, 1)

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._model: Any = None
        self.own, self.reserved = torch.cuda.empty_cache, torch.cuda.memory_reserved

    def piece(self, mib: int, mark: int) -> Any:
        return self._torch.empty(mib << 20, dtype=self._torch.uint8, device="cuda").fill_(mark)

    def holds(self, piece: Any, mark: int) -> bool:
        return bool(piece[0].item() == mark and piece[-1].item() == mark)

    def product(self) -> bool:
        twos = self._torch.full((1024, 1024), 2.0, device="cuda")
        return bool((twos @ twos).sum().item() == 2.0**32)

    def train(self) -> float:
        torch = self._torch
        if self._model is None:
            self._model = torch.nn.TransformerEncoderLayer(256, 8, dropout=0.0, batch_first=True).cuda()
            self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._optimizer.zero_grad()
        loss = self._model(torch.randn(8, 64, 256, device="cuda")).square().mean()
        loss.backward()
        self._optimizer.step()
        return float(loss.item())

    def synchronise(self) -> None:
        self._torch.cuda.synchronize()


class ColdTorch(Torch):
    """Allocates first, and loads its code afterwards, at the cap."""

    def warm_up(self) -> None:
        self._torch.cuda.init()

    def piece(self, mib: int, mark: int) -> Any:
        return self._torch.empty(mib << 20, dtype=self._torch.uint8, device="cuda")

    def holds(self, piece: Any, mark: int) -> bool:
        return True


class Jax(Framework):
    # One size for the default allocator (BFC), which waits 10 s before each refusal. It takes all its memory at the start.
    sizes = (256, 16, 2) if "XLA_PYTHON_CLIENT_ALLOCATOR" in os.environ else (128,)

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np

        def train_step(weights: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
            def loss_of(layers: list[jax.Array]) -> jax.Array:
                return jnp.square(jnp.tanh(x @ layers[0]) @ layers[1]).mean()

            loss, slopes = jax.value_and_grad(loss_of)(weights)
            return [w - 0.01 * slope for w, slope in zip(weights, slopes, strict=True)], loss

        self._jax, self._np = jax, np
        self._product_sum = jax.jit(lambda a: (a @ a).sum())
        self._step = jax.jit(train_step)
        self._weights = [jnp.full((512, 512), 0.01), jnp.full((512, 512), 0.01)]

    def piece(self, mib: int, mark: int) -> Any:
        return self._jax.device_put(self._np.full(mib << 18, mark, self._np.float32)).block_until_ready()

    def holds(self, piece: Any, mark: int) -> bool:
        """Copies the whole piece, because indexing would load a kernel. Checks only large pieces, to save time."""
        if piece.nbytes < self.sizes[0] << 20:
            return True
        data = self._np.asarray(piece)
        return bool(data[0] == mark and data[-1] == mark)

    def product(self) -> bool:
        return float(self._product_sum(self._jax.device_put(self._np.full((1024, 1024), 2.0, self._np.float32)))) == 2.0**32

    def train(self) -> float:
        x = self._jax.device_put(self._np.ones((64, 512), self._np.float32))
        self._weights, loss = self._step(self._weights, x)
        return float(loss)


class TensorFlow(Framework):
    # As for JAX.
    sizes = (256, 16, 2) if "TF_GPU_ALLOCATOR" in os.environ else (128,)

    def __init__(self) -> None:
        import tensorflow as tf

        if not tf.config.list_physical_devices("GPU"):
            sys.exit("TensorFlow sees no GPU")
        self._tf = tf
        # Allocated before the cap is reached: there even a number is refused, and TensorFlow raises another error for it.
        self._marks = [tf.constant(float(mark)) for mark in range(101)]
        self._weights = [tf.Variable(tf.fill([512, 512], 0.01)) for _ in range(2)]

    def piece(self, mib: int, mark: int) -> Any:
        return self._tf.fill([mib << 18], self._marks[mark])

    def holds(self, piece: Any, mark: int) -> bool:
        return float(piece[0]) == mark and float(piece[-1]) == mark

    def product(self) -> bool:
        twos = self._tf.fill([1024, 1024], 2.0)
        return float(self._tf.reduce_sum(twos @ twos)) == 2.0**32

    def train(self) -> float:
        tf = self._tf
        x = tf.ones([64, 512])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.tanh(x @ self._weights[0]) @ self._weights[1]))
        for weights, slope in zip(self._weights, tape.gradient(loss, self._weights), strict=True):
            weights.assign_sub(0.01 * slope)
        return float(loss)


class Cupy(Framework):
    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        pool = cupy.get_default_memory_pool()
        self.own, self.reserved = pool.free_all_blocks, pool.total_bytes

    def piece(self, mib: int, mark: int) -> Any:
        piece = self._cupy.empty(mib << 20, dtype=self._cupy.uint8)
        piece.fill(mark)
        return piece

    def holds(self, piece: Any, mark: int) -> bool:
        return int(piece[0]) == mark and int(piece[-1]) == mark

    def product(self) -> bool:
        twos = self._cupy.full((1024, 1024), 2.0, dtype=self._cupy.float32)
        return float((twos @ twos).sum()) == 2.0**32

    def synchronise(self) -> None:
        self._cupy.cuda.Device().synchronize()


FRAMEWORKS: dict[str, Callable[[], Framework]] = {
    "torch": Torch,
    "cold": ColdTorch,
    "jax": Jax,
    "tensorflow": TensorFlow,
    "cupy": Cupy,
}
