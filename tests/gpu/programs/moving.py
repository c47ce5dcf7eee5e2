"""Holds blocks of the first devices whose every word it knows: `moving.py COUNT MIB [DEVICES]`, so many on each device.

Commands: `touch` (one call of the driver), `check` (compares each byte), `change` (writes other words), `work SECONDS` (does so
all the time), `end`.
"""

from __future__ import annotations

import ctypes
import sys
import time

from small_cuda import MIB, Cuda
from talk import say, wait


class Blocks:
    """Blocks of words that differ from block to block and from change to change. None is zero."""

    def __init__(self, cuda: Cuda, count: int, mib: int) -> None:
        self._cuda = cuda
        self._bytes = mib * MIB
        cuda.make_current()
        self._blocks = [cuda.allocate(mib) for _ in range(count)]
        if None in self._blocks:
            raise RuntimeError(f"the device has no room for {count} blocks of {mib} MiB")
        self._round = 0
        self._copy = ctypes.create_string_buffer(self._bytes)
        self._libc = ctypes.CDLL(None)
        self._libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        self.change()

    def change(self) -> None:
        self._cuda.make_current()
        self._round += 1
        for number, block in enumerate(self._blocks):
            self._cuda.must("cuMemsetD32_v2", ctypes.c_uint64(block), self._word(number), ctypes.c_size_t(self._bytes // 4))
        self._cuda.must("cuCtxSynchronize")

    def wrong(self) -> int:
        """Returns how many blocks are not as they were written."""
        found = 0
        self._cuda.make_current()
        for number, block in enumerate(self._blocks):
            self._cuda.must("cuMemcpyDtoH_v2", self._copy, ctypes.c_uint64(block), ctypes.c_size_t(self._bytes))
            first = int.from_bytes(self._copy[:4], "little")
            at = ctypes.addressof(self._copy)  # all words are as the first one if the block is equal to itself, a word on
            found += first != self._word(number) or self._libc.memcmp(at, at + 4, self._bytes - 4) != 0
        return found

    def _word(self, number: int) -> int:
        return (self._round * 65_537 + number * 257 + 1) & 0x7FFFFFFF


def work(blocks: list[Blocks], seconds: float) -> None:
    """Changes the blocks again and again, and says how often and how long the longest change took."""
    longest, rounds, until = 0.0, 0, time.monotonic() + seconds
    while (begin := time.monotonic()) < until:
        for one in blocks:
            one.change()
        longest = max(longest, time.monotonic() - begin)
        rounds += 1
    say("worked", rounds=rounds, longest_s=longest)


def main() -> None:
    count, mib = map(int, sys.argv[1:3])
    cudas = [Cuda(ordinal) for ordinal in range(int(sys.argv[3]) if len(sys.argv) > 3 else 1)]
    blocks = [Blocks(cuda, count, mib) for cuda in cudas]
    say("ready")
    while (command := wait()) != "end":
        if command == "check":
            say("checked", wrong=sum(one.wrong() for one in blocks))
        elif command == "change":
            for one in blocks:
                one.change()
            say("changed")
        elif command.startswith("work "):
            work(blocks, float(command.split()[1]))
        else:
            begin = time.monotonic()
            cudas[0].total_mib()
            say("touched", seconds=time.monotonic() - begin)


main()
