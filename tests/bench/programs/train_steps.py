"""Whole programs without PyTorch: `train_steps.py jax|tensorflow|cupy|cupy-uncached`. Each has the same losses in every run.

jax            the jitted step of tests/gpu/programs/training/jax_step.py
tensorflow     the CNN of tests/gpu/programs/training/tensorflow_remedies.py
cupy           a power iteration with temporaries in each step
cupy-uncached  the same without CuPy's pool, so that each temporary takes a cudaMalloc and a cudaFree
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import turns

Steps = tuple[Callable[[], Any], Callable[[Any], object]]
"""A function that makes a step and returns its loss, and one that waits for a loss."""


def jax_steps() -> Steps:
    from jax_step import start_of, step as step_of  # before JAX: it sets XLA_FLAGS
    import jax

    layers, momenta, x, y = start_of(2048, 8, 2048)
    jitted = jax.jit(step_of)

    def step() -> Any:
        nonlocal layers, momenta
        layers, momenta, loss = jitted(layers, momenta, x, y)
        return loss

    return step, lambda _: jax.block_until_ready(layers)


def tensorflow_steps() -> Steps:
    from tensorflow_remedies import BATCH, cnn, function_step, images
    import tensorflow as tf
    from tensorflow import keras

    if not tf.config.list_physical_devices("GPU"):
        sys.exit("TensorFlow sees no GPU")
    keras.utils.set_random_seed(1)
    tf.config.experimental.enable_op_determinism()
    train = function_step(cnn())
    x, y = (tf.constant(part) for part in images())
    batches = [(x[at : at + BATCH], y[at : at + BATCH]) for at in range(0, len(y), BATCH)]
    number = 0

    def step() -> Any:
        nonlocal number
        number += 1
        return train(*batches[(number - 1) % len(batches)])

    return step, float


def cupy_steps(cached: bool) -> Steps:
    import cupy

    if not cached:
        cupy.cuda.set_allocator(None)
    random = cupy.random.RandomState(1)
    matrix = random.standard_normal((2048, 2048), dtype=cupy.float32)
    vectors = random.standard_normal((2048, 64), dtype=cupy.float32)

    def step() -> Any:
        nonlocal vectors
        turned = matrix @ vectors
        length = cupy.sqrt((turned * turned).sum(axis=0, keepdims=True))
        fresh = turned / length
        loss = abs(fresh - vectors).max()
        vectors = cupy.tanh(fresh) + 0.1 * vectors
        return loss

    return step, lambda _: cupy.cuda.Device().synchronize()


_KINDS: dict[str, tuple[Callable[[], Steps], int]] = {
    "jax": (jax_steps, 3),
    "tensorflow": (tensorflow_steps, 3),
    "cupy": (lambda: cupy_steps(cached=True), 20),
    "cupy-uncached": (lambda: cupy_steps(cached=False), 20),
}
"""Each with the number of its first, slower steps."""


def main(kind: str) -> None:
    make, first_steps = _KINDS[kind]
    step, wait_for = make()
    losses: list[Any] = []

    def steps(count: int) -> None:
        for _ in range(count):
            losses.append(step())
        wait_for(losses[-1])

    steps(first_steps)
    turns.serve(steps, lambda: [float(loss) for loss in losses])


main(sys.argv[1])
