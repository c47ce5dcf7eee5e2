"""Holds blocks of the first devices whose every word it knows: `moving.py COUNT MIB [DEVICES]`, so many on each device.

Commands: `touch` (one call of the driver), `check` (compares each byte), `change` (writes other words), `work SECONDS` (does so
all the time), `share` (the IPC handle of the first block), `open HANDLE` (of another process), `see` (the word of an opened
block, 0 if it has several), `close` (it), `end`.
"""

from __future__ import annotations

import ctypes
import sys
import time

from small_cuda import MIB, Cuda
from talk import say, wait


class _Handle(ctypes.Structure):
    """CUipcMemHandle, which calls take by value."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


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
        self._cuda.make_current()
        return sum(self.word_of(block) != self._word(number) for number, block in enumerate(self._blocks))

    def word_of(self, block: int) -> int:
        """Returns the word that a block consists of; 0 if it has several."""
        self._cuda.must("cuMemcpyDtoH_v2", self._copy, ctypes.c_uint64(block), ctypes.c_size_t(self._bytes))
        at = ctypes.addressof(self._copy)  # all words are as the first one if the block is equal to itself, a word on
        same = self._libc.memcmp(at, at + 4, self._bytes - 4) == 0
        return int.from_bytes(self._copy[:4], "little") if same else 0

    def shared(self) -> str:
        """Returns the first block's IPC handle."""
        handle = _Handle()
        self._cuda.must("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(self._blocks[0]))
        return bytes(handle.bytes).hex()

    def _word(self, number: int) -> int:
        return (self._round * 65_537 + number * 257 + 1) & 0x7FFFFFFF


def opened(cuda: Cuda, text: str) -> int:
    """Returns the address of another process's block."""
    pointer = ctypes.c_uint64()
    cuda.must("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), _Handle.from_buffer_copy(bytes.fromhex(text)), 1)
    return pointer.value


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
        elif command == "share":
            say("shared", handle=blocks[0].shared())
        elif command.startswith("open "):
            other = opened(cudas[0], command.split()[1])
            say("opened")
        elif command == "see":
            say("seen", word=blocks[0].word_of(other))
        elif command == "close":
            cudas[0].must("cuIpcCloseMemHandle", ctypes.c_uint64(other))
            say("closed")
        else:
            begin = time.monotonic()
            cudas[0].total_mib()
            say("touched", seconds=time.monotonic() - begin)


main()
