"""A Python program with its own SIGUSR1 handler under curb: `handlers.py KIND MOMENT`.

KIND    `signal` (signal.signal) or `faulthandler` (faulthandler.register)
MOMENT  `before` CUDA is used, or `after`: then the program replaces a handler that is curb's already
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from pathlib import Path

from small_cuda import Cuda
from talk import say, wait

TRACEBACK = Path("traceback.txt")


def count(number: int, frame: object) -> None:
    count.calls += 1


count.calls = 0


def register(kind: str) -> None:
    if kind == "signal":
        signal.signal(signal.SIGUSR1, count)
    else:
        faulthandler.register(signal.SIGUSR1, file=TRACEBACK.open("w"))


def main(kind: str, moment: str) -> None:
    if moment == "before":
        register(kind)
    cuda = Cuda()
    if moment == "after":
        register(kind)
    pointer = cuda.allocate(64)
    say("ready")
    wait()
    if kind == "signal":
        calls = count.calls
        seen = signal.getsignal(signal.SIGUSR1) is count
    else:
        calls = TRACEBACK.read_text().count("most recent call first")
        seen = True
    say("done", calls=calls, still_registered=seen, allocated=pointer is not None)


main(*sys.argv[1:])
