#!/usr/bin/env python3
"""Python programs with signal handlers of their own, under curb on the simulated driver: `signal_programs.py NAME`.

ORDER says whether the program sets its handler `before` or `after` the first use of CUDA. The exit status is 0 if
everything was as it must be.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import tempfile
from collections.abc import Callable

import driver_calls as driver
from driver_calls import CONTEXT, MIB, held, within

RELEASE = signal.SIGUSR1

calls: list[int] = []


def must(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"not so: {what}")


def count(number: int, frame: object) -> None:
    calls.append(number)


def leave_memory_in_the_pool() -> None:
    pool, block, threshold = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64(2**64 - 1)
    driver.must("cuDeviceGetMemPool", ctypes.byref(pool), 0)
    driver.must("cuMemPoolSetAttribute", pool, 4, ctypes.byref(threshold))  # the release threshold
    driver.must("cuMemAllocAsync", ctypes.byref(block), ctypes.c_size_t(256 * MIB), None)
    must(held() == CONTEXT + 256 * MIB, "the pool has it")
    driver.must("cuMemFreeAsync", block, None)


def send_and_see_the_release() -> None:
    leave_memory_in_the_pool()
    os.kill(os.getpid(), RELEASE)
    must(within(5, lambda: held() == CONTEXT), "the signal brings back what the pool kept")


def around(register: Callable[[], object]) -> None:
    """Registers before or after the first use of CUDA."""
    before = os.environ["ORDER"] == "before"
    if before:
        register()
    driver.use(0)
    if not before:
        register()


def python_handler() -> None:
    must(signal.getsignal(RELEASE) == signal.SIG_DFL, "Python knows of no handler at first")

    def register() -> None:
        must(signal.signal(RELEASE, count) == signal.SIG_DFL, "there was no handler")

    around(register)
    send_and_see_the_release()
    send_and_see_the_release()
    must(within(5, lambda: calls == [RELEASE, RELEASE]), "the handler is called for each signal")
    must(signal.getsignal(RELEASE) is count, "getsignal tells the program's handler")
    must(signal.signal(RELEASE, signal.SIG_IGN) is count, "the handler before is the program's")
    must(signal.signal(RELEASE, signal.SIG_DFL) == signal.SIG_IGN, "and the one before that")
    send_and_see_the_release()
    must(len(calls) == 2, "a handler that is gone is not called")


def faulthandler_before_a_handler() -> None:
    """With chain, faulthandler sets the previous handler again, raises the signal, and then sets its own back."""
    file = tempfile.TemporaryFile()

    def tracebacks() -> int:
        return os.pread(file.fileno(), 1 << 20, 0).count(b"most recent call first")

    def register() -> None:
        signal.signal(RELEASE, count)
        # Of one thread: curb's worker is a thread of Python too while it runs a release.
        faulthandler.register(RELEASE, file=file, all_threads=False, chain=True)

    around(register)
    send_and_see_the_release()
    send_and_see_the_release()
    must(within(5, lambda: calls == [RELEASE, RELEASE]), "the handler behind is called too")
    must(tracebacks() == 2, "a traceback for each signal")
    faulthandler.unregister(RELEASE)
    send_and_see_the_release()
    must(within(5, lambda: len(calls) == 3), "the handler behind is back in its place")
    must(tracebacks() == 2, "none after it is unregistered")


PROGRAMS: dict[str, Callable[[], None]] = {
    "signal": python_handler,
    "signal_and_faulthandler": faulthandler_before_a_handler,
}

PROGRAMS[sys.argv[1]]()
