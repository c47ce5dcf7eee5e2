"""A program whose captures end in other ways than by their end, or are in their way. Told a way, it says "captured" with
256 MiB left in the pool that only a synchronisation brings back. Ways:

forked     a stream that was forked into a capture is destroyed; the next capture is in progress until told "finish",
           then "ended" says how it went
stream     a capture has gone with its stream
reset      a capture has gone with the primary context
threshold  sets the pool's release threshold and reads it back for so many seconds while curb lowers and restores it
           (told a number): "read" says how often, and which other figures it was told
"""

from __future__ import annotations

import ctypes
import time

from small_cuda import MIB, Cuda
from talk import say, wait

_NON_BLOCKING, _DISABLE_TIMING, _GLOBAL, _THRESHOLD = 1, 2, 0, 4
_OWN = 77 * MIB


class Captures(Cuda):
    def made(self, name: str, flags: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.must(name, ctypes.byref(handle), flags)
        return handle

    def stream(self) -> ctypes.c_void_p:
        return self.made("cuStreamCreate", _NON_BLOCKING)

    def begin(self, stream: ctypes.c_void_p) -> None:
        self.must("cuStreamBeginCapture_v2", stream, _GLOBAL)

    def end(self, stream: ctypes.c_void_p) -> int:
        return int(self._driver.cuStreamEndCapture(stream, ctypes.byref(ctypes.c_void_p())))

    def pool(self) -> ctypes.c_void_p:
        pool = ctypes.c_void_p()
        self.must("cuDeviceGetDefaultMemPool", ctypes.byref(pool), self.ordinal)
        return pool

    def keep(self, threshold: int) -> None:
        self.must("cuMemPoolSetAttribute", self.pool(), _THRESHOLD, ctypes.byref(ctypes.c_uint64(threshold)))

    def take(self, mib: int) -> ctypes.c_uint64:
        block = ctypes.c_uint64()
        self.must("cuMemAllocAsync", ctypes.byref(block), ctypes.c_size_t(mib * MIB), None)
        return block

    def leave_in_pool(self) -> None:
        self.keep(2**64 - 1)
        self.must("cuMemFreeAsync", self.take(256), None)

    def threshold(self) -> int:
        value = ctypes.c_uint64()
        self.must("cuMemPoolGetAttribute", self.pool(), _THRESHOLD, ctypes.byref(value))
        return value.value


def _fork_and_destroy(cuda: Captures) -> None:
    stream, other = cuda.stream(), cuda.stream()
    fork = cuda.made("cuEventCreate", _DISABLE_TIMING)
    cuda.begin(stream)
    cuda.must("cuEventRecord", fork, stream)
    cuda.must("cuStreamWaitEvent", other, fork, 0)
    cuda.must("cuStreamDestroy_v2", other)
    cuda.end(stream)  # whatever the driver says of that one
    cuda.leave_in_pool()
    cuda.begin(stream)
    say("captured")
    wait()
    say("ended", result=cuda.end(stream))


def _read_thresholds(cuda: Captures, seconds: float) -> None:
    cuda.keep(_OWN)
    others: set[int] = set()
    reads = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(1000):
            if (told := cuda.threshold()) != _OWN:
                others.add(told)
        reads += 1000
    say("read", reads=reads, others=sorted(others))


def main() -> None:
    cuda = Captures()
    say("ready")
    while (way := wait()) != "end":
        if way == "forked":
            _fork_and_destroy(cuda)
            continue
        if way == "threshold":
            block = cuda.take(1024)
            say("taken")
            _read_thresholds(cuda, float(wait()))
            cuda.must("cuMemFreeAsync", block, None)
            continue
        stream = cuda.stream()
        cuda.begin(stream)
        if way == "stream":
            cuda.must("cuStreamDestroy_v2", stream)
        else:
            cuda.must("cuDevicePrimaryCtxReset_v2", cuda.ordinal)
            cuda.must("cuDevicePrimaryCtxRetain", ctypes.byref(cuda.context), cuda.ordinal)
            cuda.make_current()
        cuda.leave_in_pool()
        say("captured")


main()
