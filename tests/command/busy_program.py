"""A program that is always busy on the simulated driver, and checks the words that it gets back.

Commands, one a line: "hold MIB" allocates so much, in blocks of 20 MiB, "beside MIB" on a second GPU, where it only lies; "work SECONDS" uses all blocks again and again, and says
how often and for how long it was not held up: "worked rounds=120 busy=3.02 of=9.11"; "free" says what cuMemGetInfo does.
"""

from __future__ import annotations

import ctypes
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1")
MIB = 2**20
BLOCK = 20 * MIB
HELD_UP_S = 0.15
"""A round that takes longer was held up."""


def must(result: int) -> None:
    if result != 0:
        print(f"error {result}", flush=True)
        sys.exit(1)


class Blocks:
    def __init__(self) -> None:
        self.all: list[ctypes.c_uint64] = []
        self.round = 0
        self.kernel = ctypes.c_void_p()

    def load(self) -> None:
        module = ctypes.c_void_p()
        must(cuda.cuModuleLoadData(ctypes.byref(module), b"curb-sim-module\nkernel short us=100\n"))
        must(cuda.cuModuleGetFunction(ctypes.byref(self.kernel), module, b"short"))

    def hold(self, size: int) -> int:
        """Returns the driver's result."""
        while size > 0:
            block = ctypes.c_uint64()
            result: int = cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(min(BLOCK, size)))
            if result != 0:
                return result
            must(cuda.cuMemsetD32_v2(block, self.word(len(self.all)), ctypes.c_size_t(1024)))
            self.all.append(block)
            size -= BLOCK
        return 0

    def word(self, block: int) -> int:
        return (self.round * 7919 + block) & 0xFFFFFFFF

    def use(self) -> bool:
        """Checks a part of each block and writes the next round's words. False if a word is wrong."""
        here = (ctypes.c_uint32 * 1024)()
        for number, block in enumerate(self.all):
            must(cuda.cuMemcpyDtoHAsync_v2(here, block, ctypes.c_size_t(4096), None))
            must(cuda.cuStreamSynchronize(None))
            if any(word != self.word(number) for word in (here[0], here[517], here[1023])):
                return False
        self.round += 1
        for number, block in enumerate(self.all):
            must(cuda.cuMemsetD32Async(block, self.word(number), ctypes.c_size_t(1024), None))
        # Eleven arguments, of which five are on the stack.
        must(cuda.cuLaunchKernel(self.kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None))
        must(cuda.cuCtxSynchronize())
        return True


def work(blocks: Blocks, seconds: float) -> str:
    began = time.monotonic()
    busy, rounds = 0.0, 0
    while (now := time.monotonic()) - began < seconds:
        if not blocks.use():
            return "wrong"
        took = time.monotonic() - now
        rounds += 1
        if took < HELD_UP_S:
            busy += took
    return f"worked rounds={rounds} busy={busy:.2f} of={time.monotonic() - began:.2f}"


def use(contexts: dict[int, ctypes.c_void_p], device: int) -> None:
    """Makes the device's primary context current."""
    if device not in contexts:
        contexts[device] = ctypes.c_void_p()
        must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(contexts[device]), device))
    must(cuda.cuCtxSetCurrent(contexts[device]))


def main() -> None:
    must(cuda.cuInit(0))
    contexts: dict[int, ctypes.c_void_p] = {}
    print("ready", flush=True)
    blocks = Blocks()
    for line in sys.stdin:
        command, _, number = line.strip().partition(" ")
        if command == "quit":
            break
        if command in ("hold", "work") and not blocks.kernel:
            use(contexts, 0)
            blocks.load()
        if command == "beside":
            use(contexts, 1)
            print("held" if (result := Blocks().hold(int(number) * MIB)) == 0 else f"error {result}", flush=True)
            use(contexts, 0)
        elif command == "hold":
            print("held" if (result := blocks.hold(int(number) * MIB)) == 0 else f"error {result}", flush=True)
        elif command == "work":
            print(work(blocks, float(number)), flush=True)
        elif command == "free":
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            must(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
            print(f"free {free.value // MIB}", flush=True)


if __name__ == "__main__":
    main()
