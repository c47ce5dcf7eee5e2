"""Trains, deterministic to the last bit: `suspend_train.py torch|torch_geometric|jax|tensorflow|cupy|numba huge|large|small STEPS|turns`,
or one of libraries.py, in one size.

`huge` holds about 45 GiB, `large` more than 8. With 0 STEPS it trains until a command comes. It prints `training` after the first steps, and at
the end `done` with its losses and a digest of its weights. With `turns` it waits for commands: each `train STEPS` trains, and
reports the time of the driver's first call of the turn. The environment selects how much JAX and TensorFlow take at their start.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import libraries
from libraries import Trainer
from talk import say, wait

# "large" has weights, gradients and momenta of 10 layers: 30 times 256 MiB.
_WIDTH, _LAYERS, _BATCH = {"huge": (16384, 14, 1024), "large": (8192, 10, 1024), "small": (1024, 4, 256)}[sys.argv[2]]
_UNTIMED_STEPS = 3
_RATE, _KEPT = 0.05, 0.9


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


def torch_geometric_trainer() -> Trainer:
    """Looks for the GPU and prepares its data for ten seconds before its first call that takes memory."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch

    assert torch.cuda.device_count() > 0
    torch.cuda.init()
    from torch_geometric.nn import GCNConv

    time.sleep(10)
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    first, second = (GCNConv(_WIDTH, _WIDTH).cuda() for _ in range(2))
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=_RATE, momentum=_KEPT)
    random = torch.Generator().manual_seed(2)
    edges = torch.randint(_BATCH, (2, 8 * _BATCH), generator=random).cuda()
    x, y = torch.randn(2, _BATCH, _WIDTH, generator=random).cuda().unbind(0)

    def step() -> float:
        loss = (second(first(x, edges).tanh(), edges) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step, lambda: (weights.detach().cpu().numpy() for weights in parameters)


def jax_trainer() -> Trainer:
    import jax_step  # before JAX: it sets XLA_FLAGS
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


def cupy_trainer() -> Trainer:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import cupy

    random = cupy.random.RandomState(1)
    layers = [random.standard_normal((_WIDTH, _WIDTH), dtype=cupy.float32) * 0.01 for _ in range(_LAYERS)]
    momenta = [cupy.zeros_like(weights) for weights in layers]
    x, y = (random.standard_normal((_BATCH, _WIDTH), dtype=cupy.float32) for _ in range(2))

    def step() -> float:
        outs = [x]
        for weights in layers:
            outs.append(cupy.tanh(outs[-1] @ weights))
        wrong = outs[-1] - y
        slope = 2 * wrong / wrong.size
        for number in reversed(range(_LAYERS)):
            slope = slope * (1 - outs[number + 1] ** 2)
            momenta[number][...] = _KEPT * momenta[number] + outs[number].T @ slope
            slope = slope @ layers[number].T
            layers[number] -= _RATE * momenta[number]
        return float((wrong**2).mean())

    return step, lambda: map(cupy.asnumpy, layers)


def numba_trainer() -> Trainer:
    """Moves a vector towards a target, by a kernel that Numba compiles. Numba has no matrix products."""
    import numpy as np
    from numba_kernels import cuda

    @cuda.jit
    def pull(weights: Any, momenta: Any, target: Any, wrong: Any) -> None:
        index = cuda.grid(1)
        if index < weights.size:
            wrong[index] = weights[index] - target[index]
            momenta[index] = np.float32(0.9) * momenta[index] + wrong[index]
            weights[index] -= np.float32(0.05) * momenta[index]

    size = _WIDTH * _WIDTH * _LAYERS
    target = cuda.to_device(np.sin(np.arange(size, dtype=np.float32)))
    weights, momenta, wrong = (cuda.to_device(np.zeros(size, dtype=np.float32)) for _ in range(3))

    def step() -> float:
        pull[(size + 255) // 256, 256](weights, momenta, target, wrong)
        return float(np.square(wrong.copy_to_host().astype(np.float64)).mean())

    return step, lambda: [weights.copy_to_host(), momenta.copy_to_host()]


def next_command() -> threading.Event:
    """Returns an event that the next command sets."""
    came = threading.Event()

    def listen() -> None:
        wait()
        came.set()

    threading.Thread(target=listen, daemon=True).start()
    return came


TRAINERS = {
    "torch": torch_trainer,
    "torch_geometric": torch_geometric_trainer,
    "jax": jax_trainer,
    "tensorflow": tensorflow_trainer,
    "cupy": cupy_trainer,
    "numba": numba_trainer,
    **libraries.TRAINERS,
}


def report(losses: list[float], weights: Callable[[], Iterable[Any]]) -> None:
    digest = hashlib.sha256()
    for array in weights():
        digest.update(array.tobytes())
    say("done", losses=losses, digest=digest.hexdigest())


def train(framework: str, steps: int) -> None:
    stop = next_command() if steps == 0 else None
    step, weights = TRAINERS[framework]()
    losses = []
    for number in range(steps) if steps else count():
        if stop and stop.is_set():
            break
        if number == _UNTIMED_STEPS:
            say("training")
        losses.append(step())  # reads the loss, so the host is at most one step ahead of the device
    report(losses, weights)
    wait()


def take_turns(framework: str) -> None:
    step, weights = TRAINERS[framework]()
    losses = [step() for _ in range(_UNTIMED_STEPS)]
    driver, devices = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    say("training")
    while (command := wait()) != "end":
        start = time.monotonic()
        driver.cuDeviceGetCount(ctypes.byref(devices))
        first = time.monotonic() - start
        losses += [step() for _ in range(int(command.split()[1]))]
        say("trained", first_s=first, took_s=time.monotonic() - start)
    report(losses, weights)
    wait()


if sys.argv[3] == "turns":
    take_turns(sys.argv[1])
else:
    train(sys.argv[1], int(sys.argv[3]))
