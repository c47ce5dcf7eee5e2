"""The few driver calls that the small programs need, by ctypes: they are about curb, and start in a tenth of a second."""

from __future__ import annotations

import ctypes

MIB = 2**20
OUT_OF_MEMORY = 2


class Cuda:
    """The driver with device 0's primary context current."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._must("cuInit", 0)
        context = ctypes.c_void_p()
        self._must("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._must("cuCtxSetCurrent", context)

    def allocate(self, mib: int) -> int | None:
        """The address; None: out of memory."""
        pointer = ctypes.c_uint64()
        result = self._driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib * MIB))
        if result not in (0, OUT_OF_MEMORY):
            raise RuntimeError(f"cuMemAlloc_v2 returned {result}")
        return pointer.value if result == 0 else None

    def free(self, pointer: int) -> None:
        self._must("cuMemFree_v2", ctypes.c_uint64(pointer))

    def total_mib(self) -> int:
        """What the program is told that the device has."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._must("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value // MIB

    def _must(self, name: str, *arguments: object) -> None:
        result = getattr(self._driver, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name} returned {result}")
