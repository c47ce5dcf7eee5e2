"""Allocates and frees memory of the device on command, by cuMemAlloc and cuMemFree.

Commands: `take N MIB` (N pieces of so many MiB, until one is refused), `give N` (frees the last N), `end`. Times are
time.monotonic()'s, which all processes of a machine share.
"""

from __future__ import annotations

import time

from small_cuda import Cuda
from talk import say, wait


def main() -> None:
    cuda = Cuda()
    pieces: list[int] = []
    say("ready")
    while (command := wait()) != "end":
        what, *numbers = command.split()
        begin = time.monotonic()
        if what == "take":
            count, mib = map(int, numbers)
            seconds, refused = [], 0
            for _ in range(count):
                asked = time.monotonic()
                pointer = cuda.allocate(mib)
                seconds.append(time.monotonic() - asked)
                if pointer is None:
                    refused += 1
                    break
                pieces.append(pointer)
            say("taken", begin=begin, end=time.monotonic(), refused=refused, seconds=seconds)
        else:
            for _ in range(int(numbers[0])):
                cuda.free(pieces.pop())
            say("given", begin=begin, end=time.monotonic())


main()
