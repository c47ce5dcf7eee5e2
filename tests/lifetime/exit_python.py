"""Ends in the way that its argument names, with GPU memory that __del__ frees: exit_python.py WAY"""

from __future__ import annotations

import _ctypes
import atexit
import ctypes
import os
import sys
import threading
import time

cuda = ctypes.CDLL("libcuda.so.1")
WAYS = ("finalisation", "daemon threads", "sys.exit in atexit", "os._exit", "an exception", "dlclose of libcuda", "before a late thread")
MIB = 2**20


class Block:
    def __init__(self) -> None:
        self.pointer = ctypes.c_uint64()
        assert cuda.cuMemAlloc_v2(ctypes.byref(self.pointer), ctypes.c_size_t(MIB)) == 0
        self.cycle = self

    def __del__(self) -> None:
        print("freed", cuda.cuMemFree_v2(self.pointer))


def allocate_for_ever() -> None:
    cuda.cuCtxSetCurrent(context)
    while True:
        pointer = ctypes.c_uint64()
        cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(MIB))
        cuda.cuMemFree_v2(pointer)


if len(sys.argv) == 1:
    print(*WAYS, sep="\n")
    sys.exit()
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
blocks = [Block() for _ in range(3)]
match sys.argv[1]:
    case "daemon threads":
        for _ in range(4):
            threading.Thread(target=allocate_for_ever, daemon=True).start()
        if "LD_PRELOAD" in os.environ:
            os.kill(os.getpid(), 10)  # a release asks for Python's lock while the interpreter ends
    case "before a late thread":  # curb's thread for a release, which late_threads.cpp delays
        time.sleep(0.3)
        if "LD_PRELOAD" in os.environ:
            os.kill(os.getpid(), 10)
        time.sleep(0.02)
    case "sys.exit in atexit":
        atexit.register(sys.exit, 5)
    case "os._exit":
        os._exit(6)
    case "dlclose of libcuda":  # the program itself is not linked with it
        for block in blocks:
            block.__del__()
        blocks[:] = []
        Block.__del__ = lambda _: None  # type: ignore[method-assign]
        print("closed", _ctypes.dlclose(cuda._handle))  # noqa: SLF001
        time.sleep(0.01)
        sys.exit(4)
    case "an exception":
        sys.excepthook = lambda *_: None
        raise RuntimeError
sys.exit(3)
