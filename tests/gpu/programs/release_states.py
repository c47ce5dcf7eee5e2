"""A program whose framework caches memory that it has no use for, in the states in which people's programs are when
somebody else wants that memory. Arguments: the framework (torch, jax, tensorflow,
cupy).

"base" -> (told "cache") fills the cache -> "cached" -> (told "own") calls the framework's own release and times it -> "own"
         -> (told a state) fills the cache anew -> "cached" in that state, until told "stop" -> "stopped"
States: sleep (in read(), as an idle notebook), compute (small steps on the GPU, one after the other), loader (waits for
batches of worker processes, a step for each), kernel (PyTorch: one kernel that runs for 8 s).
         -> (told "large") allocates more than one cached piece could serve, while the cache is full -> "large"
"""

from __future__ import annotations

import gc
import select
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from talk import say, wait

_PIECES, _PIECE_MIB = 14, 256
_LARGE_MIB = 4608  # more than all that is cached, which may be one piece


class Framework(Protocol):
    def piece(self, mib: int) -> Any: ...
    def synchronise(self) -> None: ...
    def step(self) -> float: ...
    """One small step of work, the same each time."""

    own: Callable[[], object] | None
    """The framework's own release; None: it has none."""


class Torch:
    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._a = torch.full((1024, 1024), 1 / 32, device="cuda")
        self.own: Callable[[], object] | None = torch.cuda.empty_cache

    def piece(self, mib: int) -> Any:
        return self._torch.empty(mib << 20, dtype=self._torch.uint8, device="cuda").fill_(1)

    def synchronise(self) -> None:
        self._torch.cuda.synchronize()

    def step(self) -> float:
        return float((self._a @ self._a).sum())


class Jax:
    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np

        self._jax, self._np = jax, np
        self._a = jax.device_put(np.full((1024, 1024), 1 / 32, np.float32))
        self._product = jax.jit(lambda a: jnp.sum(a @ a))
        self.own: Callable[[], object] | None = None

    def piece(self, mib: int) -> Any:
        return self._jax.device_put(self._np.full(mib << 18, 1, self._np.float32)).block_until_ready()

    def synchronise(self) -> None:
        """Nothing: at the next synchronisation the pool gives back what it keeps, so that there would be nothing to see."""

    def step(self) -> float:
        return float(self._product(self._a))


class TensorFlow:
    def __init__(self) -> None:
        import tensorflow as tf

        self._tf = tf
        self._a = tf.fill([1024, 1024], 1 / 32)
        self.own: Callable[[], object] | None = None

    def piece(self, mib: int) -> Any:
        return self._tf.fill([mib << 18], 1.0)

    def synchronise(self) -> None:
        """Nothing, for JAX's reason."""

    def step(self) -> float:
        return float(self._tf.reduce_sum(self._a @ self._a))


class Cupy:
    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._a = cupy.full((1024, 1024), 1 / 32, dtype=cupy.float32)
        self.own: Callable[[], object] | None = cupy.get_default_memory_pool().free_all_blocks

    def piece(self, mib: int) -> Any:
        piece = self._cupy.empty(mib << 20, dtype=self._cupy.uint8)
        piece.fill(1)
        return piece

    def synchronise(self) -> None:
        self._cupy.cuda.Device().synchronize()

    def step(self) -> float:
        return float((self._a @ self._a).sum())


_FRAMEWORKS: dict[str, Callable[[], Framework]] = {"torch": Torch, "jax": Jax, "tensorflow": TensorFlow, "cupy": Cupy}


def cache(framework: Framework) -> None:
    pieces = [framework.piece(_PIECE_MIB) for _ in range(_PIECES)]
    pieces.clear()
    gc.collect()
    framework.synchronise()


def run_for(seconds: float) -> None:
    """Launches one kernel that runs for about so long, and returns."""
    import torch

    start, cycles = time.perf_counter(), 200_000_000
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    torch.cuda._sleep(int(cycles * seconds / (time.perf_counter() - start)))


def told() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def _produce(queue: Any) -> None:
    while True:
        time.sleep(0.02)
        queue.put(bytes(1 << 16))


def main() -> None:
    framework = _FRAMEWORKS[sys.argv[1]]()
    expected = framework.step()
    framework.synchronise()
    say("base")
    wait()
    cache(framework)
    say("cached")
    while (command := wait()) != "end":
        if command == "own":
            start = time.perf_counter()
            if framework.own:
                framework.own()
            say("own", ms=round((time.perf_counter() - start) * 1e3, 3) if framework.own else None)
            continue
        cache(framework)
        right = True
        if command == "large":
            say("cached")
            wait()
            piece = framework.piece(_LARGE_MIB)
            say("large", correct=framework.step() == expected)
            del piece
            continue
        if command == "kernel":
            run_for(8.0)
        say("cached")
        if command in ("compute", "loader"):
            while not told():
                if command == "loader":
                    _QUEUE.get()
                right = right and framework.step() == expected
        wait()
        say("stopped", correct=right and framework.step() == expected)


if __name__ == "__main__":
    import multiprocessing

    _QUEUE: Any = multiprocessing.get_context("fork").Queue(4)
    for _ in range(2):
        multiprocessing.get_context("fork").Process(target=_produce, args=(_QUEUE,), daemon=True).start()
    main()
