"""Allocates and frees until the answer changes, and says when it did.

Commands: `granted MIB` and `refused MIB` wait for that answer, `now MIB` gives today's.
"""

from __future__ import annotations

import time

from small_cuda import Cuda
from talk import say, wait

_PATIENCE_S = 5.0


def granted(cuda: Cuda, mib: int) -> bool:
    pointer = cuda.allocate(mib)
    if pointer is None:
        return False
    cuda.free(pointer)
    return True


def main() -> None:
    cuda = Cuda()
    say("ready", total_mib=cuda.total_mib())
    while (command := wait()) != "end":
        what, mib = command.split()
        deadline = time.monotonic() + _PATIENCE_S
        answer = granted(cuda, int(mib))
        while what != "now" and answer != (what == "granted") and time.monotonic() < deadline:
            time.sleep(0.001)
            answer = granted(cuda, int(mib))
        say("answer", granted=answer, at=time.monotonic())


main()
