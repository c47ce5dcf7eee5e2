"""The part of Numba that curb calls: queues of deferred frees, of each context and of its memory manager."""

from __future__ import annotations

from collections import deque

import driver_calls


class Pending:
    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        self.is_disabled = False

    def add(self, size: int) -> None:
        self.waiting.append(driver_calls.take(size))

    def clear(self) -> None:
        while self.waiting and not self.is_disabled:
            driver_calls.give(self.waiting.popleft())

    def __len__(self) -> int:
        return len(self.waiting)


class Manager:
    def __init__(self) -> None:
        self.deallocations = Pending()


class Context:
    def __init__(self, device: int) -> None:
        self.handle = driver_calls.use(device)
        self.deallocations = Pending()
        self.memory_manager = Manager()

    def push(self) -> None:
        driver_calls.must("cuCtxPushCurrent_v2", self.handle)

    def pop(self) -> None:
        if driver_calls.current().value != self.handle.value:
            raise AssertionError("another context is current")
        driver_calls.must("cuCtxPopCurrent_v2", driver_calls.ctypes.byref(driver_calls.ctypes.c_void_p()))


class Device:
    def __init__(self, ordinal: int) -> None:
        self.id = ordinal
        self.primary_context: Context | None = None

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"asked the driver for {name}")


class Driver:
    def __init__(self) -> None:
        self.devices: dict[int, Device] = {}

    def context(self, ordinal: int) -> Context:
        device = self.devices.setdefault(ordinal, Device(ordinal))
        device.primary_context = device.primary_context or Context(ordinal)
        return device.primary_context


driver = Driver()
