"""TensorFlow training that holds more than 8 GiB, deterministic to the last bit: `suspend_tensorflow.py STEPS`.

Knows nothing of curb. Says `training` once it is in full swing, and at the end its losses and a digest of all that it
learnt. TensorFlow takes all that it is shown at its start.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import tensorflow as tf
from talk import say, wait

_WIDTH, _LAYERS, _BATCH = 8192, 10, 1024  # weights, their gradients and momenta: 30 times 256 MiB
_UNTIMED_STEPS = 3
_RATE, _KEPT = 0.05, 0.9


def main(steps: int) -> None:
    tf.random.set_seed(1)
    tf.config.experimental.enable_op_determinism()
    layers = [tf.Variable(tf.random.normal([_WIDTH, _WIDTH], stddev=0.01, seed=seed)) for seed in range(_LAYERS)]
    momenta = [tf.Variable(tf.zeros_like(weights)) for weights in layers]
    x, y = (tf.random.normal([_BATCH, _WIDTH], seed=seed) for seed in (_LAYERS, _LAYERS + 1))

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            out = x
            for weights in layers:
                out = tf.tanh(out @ weights)
            loss = tf.reduce_mean(tf.square(out - y))
        for weights, momentum, slope in zip(layers, momenta, tape.gradient(loss, layers), strict=True):
            momentum.assign(_KEPT * momentum + slope)
            weights.assign_sub(_RATE * momentum)
        return loss

    losses = []
    for number in range(steps):
        if number == _UNTIMED_STEPS:
            say("training")
        losses.append(float(step()))  # keeps the host no more than a step ahead
    digest = hashlib.sha256()
    for weights in layers:
        digest.update(weights.numpy().tobytes())
    say("done", losses=losses, digest=digest.hexdigest())
    wait()


main(int(sys.argv[1]))
