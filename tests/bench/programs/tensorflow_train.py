"""Training in TensorFlow, the same losses in each run: the CNN of tests/gpu/programs/tensorflow_remedies.py. Knows nothing of
curb."""

from __future__ import annotations

import sys
from typing import Any

import turns  # noqa: I001  (where tensorflow_remedies.py is found)
from tensorflow_remedies import BATCH, cnn, images
import tensorflow as tf
from tensorflow import keras

_FIRST_STEPS = 3


def main() -> None:
    if not tf.config.list_physical_devices("GPU"):
        sys.exit("TensorFlow sees no GPU")
    keras.utils.set_random_seed(1)
    tf.config.experimental.enable_op_determinism()
    model = cnn()
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x, y = (tf.constant(part) for part in images())
    batches = [(x[at : at + BATCH], y[at : at + BATCH]) for at in range(0, len(y), BATCH)]
    losses: list[Any] = []

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        slopes = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(slopes, model.trainable_variables, strict=True))
        return loss

    def steps(count: int) -> None:
        for _ in range(count):
            losses.append(step(*batches[len(losses) % len(batches)]))
        float(losses[-1])

    steps(_FIRST_STEPS)
    turns.serve(steps, lambda: [float(loss) for loss in losses])


main()
