"""Training that is deterministic to the last bit: `suspend_train.py torch|jax|tensorflow large|small STEPS`.

`large` holds more than 8 GiB. With 0 STEPS it trains until it is told to end. Says `training` once it is in full swing, and at
the end its losses and a digest of its weights. Does not use curb. How much JAX and TensorFlow take at their start depends on
the environment.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from talk import say, wait

# The large one's weights, their gradients and momenta: 30 times 256 MiB.
_WIDTH, _LAYERS, _BATCH = {"large": (8192, 10, 1024), "small": (1024, 4, 256)}[sys.argv[2]]
_UNTIMED_STEPS = 3
_RATE, _KEPT = 0.05, 0.9

Trainer = tuple[Callable[[], float], Callable[[], Iterable[Any]]]
"""A step that returns its loss, and the weights as arrays of NumPy."""


def torch_trainer() -> Trainer:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # required by torch for determinism
    import torch
    from torch import nn

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    layers = [nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh()))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE, momentum=_KEPT)
    x, y = torch.randn(2, _BATCH, _WIDTH, generator=torch.Generator().manual_seed(2)).cuda().unbind(0)

    def step() -> float:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step, lambda: (weights.detach().cpu().numpy() for weights in model.parameters())


def jax_trainer() -> Trainer:
    import jax_step  # before JAX: it sets how XLA computes
    import jax
    import numpy as np

    layers, momenta, x, y = jax_step.start_of(_WIDTH, _LAYERS, _BATCH)
    jitted = jax.jit(jax_step.step, donate_argnums=(0, 1))

    def step() -> float:
        nonlocal layers, momenta
        layers, momenta, loss = jitted(layers, momenta, x, y)
        return float(loss)

    return step, lambda: map(np.asarray, layers)


def tensorflow_trainer() -> Trainer:
    import tensorflow as tf

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

    return lambda: float(step()), lambda: (weights.numpy() for weights in layers)


def until_told() -> threading.Event:
    told = threading.Event()

    def listen() -> None:
        wait()
        told.set()

    threading.Thread(target=listen, daemon=True).start()
    return told


def main(framework: str, steps: int) -> None:
    told = until_told() if steps == 0 else None
    step, weights = {"torch": torch_trainer, "jax": jax_trainer, "tensorflow": tensorflow_trainer}[framework]()
    losses = []
    for number in range(steps) if steps else count():
        if told and told.is_set():
            break
        if number == _UNTIMED_STEPS:
            say("training")
        losses.append(step())  # the loss is read in each step, so the host stays at most one step ahead
    digest = hashlib.sha256()
    for array in weights():
        digest.update(array.tobytes())
    say("done", losses=losses, digest=digest.hexdigest())
    wait()


main(sys.argv[1], int(sys.argv[3]))
