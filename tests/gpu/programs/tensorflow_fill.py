"""TensorFlow up to the cap. The allocator is chosen by TF_GPU_ALLOCATOR, as users choose it."""

from __future__ import annotations

import os
import sys
from typing import Any

import tensorflow as tf
from fill import run

# The default allocator waits 10 s before each refusal, so it is refused once, as jax_fill.py's.
_SIZES = (256, 16, 2) if "TF_GPU_ALLOCATOR" in os.environ else (128,)


class TensorFlow:
    sizes = _SIZES

    def __init__(self) -> None:
        if not tf.config.list_physical_devices("GPU"):
            sys.exit("TensorFlow sees no GPU")
        # Beforehand: when all is full there is no room for a number either, and TensorFlow reports that in another way.
        self._marks = [tf.constant(float(mark)) for mark in range(101)]
        self._weights = [tf.Variable(tf.fill([512, 512], 0.01)) for _ in range(2)]

    def warm_up(self) -> None:
        for _ in range(3):
            self.compute()
        for mib in self.sizes:
            self.holds(self.piece(mib, 1), 1)

    def piece(self, mib: int, mark: int) -> Any:
        return tf.fill([mib << 18], self._marks[mark])

    def holds(self, piece: Any, mark: int) -> bool:
        return float(piece[0]) == mark and float(piece[-1]) == mark

    def compute(self) -> bool:
        """A matrix product whose sum is known to the last bit (powers of two), and a training step."""
        twos = tf.fill([1024, 1024], 2.0)
        return float(tf.reduce_sum(twos @ twos)) == 2.0**32 and self._train() < 1e3

    def _train(self) -> float:
        x = tf.ones([64, 512])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.tanh(x @ self._weights[0]) @ self._weights[1]))
        for weights, slope in zip(self._weights, tape.gradient(loss, self._weights), strict=True):
            weights.assign_sub(0.01 * slope)
        return float(loss)


run(TensorFlow())
