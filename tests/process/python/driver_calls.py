"""Calls of the simulated driver by ctypes, for the programs and stand-ins of this folder."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

_driver = ctypes.CDLL("libcuda.so.1")
_simulated = _driver.curb_sim_held
_simulated.restype = ctypes.c_uint64

MIB = 1 << 20
CONTEXT = 518 * MIB


def within(seconds: float, condition: Callable[[], object]) -> bool:
    """Waits for the condition. False if it is still false after this time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def must(name: str, *arguments: object) -> None:
    result = getattr(_driver, name)(*arguments)
    if result != 0:
        raise RuntimeError(f"{name}: {result}")


def held(device: int = 0) -> int:
    return int(_simulated(device))


def current() -> ctypes.c_void_p:
    context = ctypes.c_void_p()
    must("cuCtxGetCurrent", ctypes.byref(context))
    return context


def use(device: int) -> ctypes.c_void_p:
    """Retains the device's primary context and makes it current."""
    context = ctypes.c_void_p()
    must("cuInit", 0)
    must("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    must("cuCtxSetCurrent", context)
    return context


def current_device() -> int:
    """Returns the current device. Like the CUDA runtime, gives a thread without a context that of device 0."""
    if not current().value:
        use(0)
    device = ctypes.c_int()
    must("cuCtxGetDevice", ctypes.byref(device))
    return device.value


def take(size: int) -> int:
    pointer = ctypes.c_uint64()
    must("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
    return pointer.value


def give(pointer: int) -> None:
    current_device()
    must("cuMemFree_v2", ctypes.c_uint64(pointer))


class Capture:
    """A graph capture on a stream of its own."""

    def __enter__(self) -> None:
        self.stream = ctypes.c_void_p()
        must("cuStreamCreate", ctypes.byref(self.stream), 1)
        must("cuStreamBeginCapture_v2", self.stream, 0)

    def __exit__(self, *_: object) -> None:
        must("cuStreamEndCapture", self.stream, ctypes.byref(ctypes.c_void_p()))
