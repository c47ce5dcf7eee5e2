"""Driver calls by ctypes, for small programs that start in a tenth of a second."""

from __future__ import annotations

import ctypes

MIB = 2**20
OUT_OF_MEMORY = 2


class Cuda:
    """The driver, with the primary context of one device. Makes that context current."""

    def __init__(self, ordinal: int = 0) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self.must("cuInit", 0)
        self.ordinal = ordinal
        self.context = ctypes.c_void_p()
        self.must("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), ordinal)
        self.make_current()

    def make_current(self) -> None:
        self.must("cuCtxSetCurrent", self.context)

    def allocate(self, mib: int) -> int | None:
        """Returns the address. None: out of memory."""
        pointer = ctypes.c_uint64()
        served = self.served("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(mib * MIB))
        return pointer.value if served else None

    def free(self, pointer: int) -> None:
        self.must("cuMemFree_v2", ctypes.c_uint64(pointer))

    def total_mib(self) -> int:
        """Returns the total memory by cuMemGetInfo."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.must("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value // MIB

    def served(self, name: str, *arguments: object) -> bool:
        """Makes a call. Returns false if it is out of memory. Raises RuntimeError on any other error."""
        result = getattr(self._driver, name)(*arguments)
        if result not in (0, OUT_OF_MEMORY):
            raise RuntimeError(f"{name} returned {result}")
        return bool(result == 0)

    def must(self, name: str, *arguments: object) -> None:
        """Makes a call. Raises RuntimeError if it fails."""
        if not self.served(name, *arguments):
            raise RuntimeError(f"{name} returned {OUT_OF_MEMORY}")
