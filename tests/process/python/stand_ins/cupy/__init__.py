"""The part of CuPy that curb calls: pools with a part for each device, and the allocator in use."""

from __future__ import annotations

import driver_calls as driver


class MemoryPool:
    def __init__(self) -> None:
        self.parts: dict[int, list[tuple[int, int]]] = {}

    def malloc(self, size: int) -> None:
        """Allocates and frees memory, which the pool keeps."""
        self.parts.setdefault(driver.current_device(), []).append((driver.take(size), size))

    def total_bytes(self) -> int:
        return sum(size for _, size in self.parts.get(driver.current_device(), []))

    def free_all_blocks(self) -> None:
        for pointer, _ in self.parts.pop(driver.current_device(), []):
            driver.give(pointer)


class Device:
    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal

    def __enter__(self) -> None:
        self.before = driver.current_device()
        driver.use(self.ordinal)

    def __exit__(self, *_: object) -> None:
        driver.use(self.before)


_default = MemoryPool()


def get_default_memory_pool() -> MemoryPool:
    return _default


class cuda:
    MemoryPool = MemoryPool
    Device = Device
    allocator = _default.malloc

    @classmethod
    def get_allocator(cls) -> object:
        return cls.allocator
