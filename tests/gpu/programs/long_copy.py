"""Copies memory to the device in one call, from pageable memory: `long_copy.py GIB`.

Commands: `copy`, `check` (compares each byte), `end`.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import time

from small_cuda import MIB, Cuda
from talk import say, wait

_GIB = 1024 * MIB


def main() -> None:
    gib = int(sys.argv[1])
    host = mmap.mmap(-1, gib * _GIB)
    host.madvise(mmap.MADV_HUGEPAGE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(host))
    for number in range(gib):
        ctypes.memset(at + number * _GIB, number + 1, _GIB)
    cuda = Cuda()
    block = cuda.allocate(gib * 1024)
    assert block is not None
    piece = mmap.mmap(-1, _GIB)
    piece_at = ctypes.addressof(ctypes.c_char.from_buffer(piece))
    libc = ctypes.CDLL(None)
    libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    say("ready")
    while (command := wait()) != "end":
        if command == "copy":
            begin = time.monotonic()
            cuda.must("cuMemcpyHtoD_v2", ctypes.c_uint64(block), ctypes.c_void_p(at), ctypes.c_size_t(gib * _GIB))
            say("copied", seconds=time.monotonic() - begin)
        else:
            wrong = 0
            for number in range(gib):
                cuda.must("cuMemcpyDtoH_v2", ctypes.c_void_p(piece_at), ctypes.c_uint64(block + number * _GIB), ctypes.c_size_t(_GIB))
                wrong += libc.memcmp(piece_at, at + number * _GIB, _GIB) != 0
            say("checked", wrong=wrong)


main()
