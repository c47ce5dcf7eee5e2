#!/usr/bin/env python3
"""Python programs with signal handlers of their own, under curb on the simulated driver: `signal_programs.py NAME`.

ORDER           `before` CUDA is used, or `after`: when the program sets its handler
RELEASE_SIGNAL  the number of the signal that curb has; SIGUSR1 unless set
CURB_POLICY     the policy file, for programs that edit it

The exit status says whether it was as it must be.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable

import driver_calls as driver
from driver_calls import CONTEXT, MIB, held, within

RELEASE = int(os.environ.get("RELEASE_SIGNAL", signal.SIGUSR1))

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


def send_and_see_the_release(number: int = RELEASE) -> None:
    leave_memory_in_the_pool()
    os.kill(os.getpid(), number)
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


class Traceback:
    """Where faulthandler writes. Of one thread: curb's worker is one more to Python while it runs a release."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()

    def count(self) -> int:
        return os.pread(self.file.fileno(), 1 << 20, 0).count(b"most recent call first")


def faulthandler_alone(chain: bool = False) -> None:
    traceback = Traceback()
    around(lambda: faulthandler.register(RELEASE, file=traceback.file, all_threads=False, chain=chain))
    send_and_see_the_release()
    send_and_see_the_release()
    must(traceback.count() == 2, "a traceback for each signal")
    must(faulthandler.unregister(RELEASE), "it was registered")
    send_and_see_the_release()
    must(traceback.count() == 2, "none after it is unregistered")


def faulthandler_before_a_handler() -> None:
    """With chain, faulthandler puts the handler before it in its place, raises the signal again, and comes back."""
    traceback = Traceback()

    def register() -> None:
        signal.signal(RELEASE, count)
        faulthandler.register(RELEASE, file=traceback.file, all_threads=False, chain=True)

    around(register)
    send_and_see_the_release()
    send_and_see_the_release()
    must(within(5, lambda: calls == [RELEASE, RELEASE]), "the handler behind is called too")
    must(traceback.count() == 2, "a traceback for each signal")
    faulthandler.unregister(RELEASE)
    send_and_see_the_release()
    must(within(5, lambda: len(calls) == 3), "the handler behind is back in its place")
    must(traceback.count() == 2, "none after it is unregistered")


def event_loop() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        around(lambda: loop.add_signal_handler(RELEASE, arrived.set))
        for _ in range(3):
            leave_memory_in_the_pool()
            os.kill(os.getpid(), RELEASE)
            await asyncio.wait_for(arrived.wait(), 5)
            arrived.clear()
            must(within(5, lambda: held() == CONTEXT), "and the memory comes back")
        must(loop.remove_signal_handler(RELEASE), "it was there")
        send_and_see_the_release()
        must(not arrived.is_set(), "a handler that is gone is not called")

    asyncio.run(run())


def sigwait() -> None:
    around(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [RELEASE]))
    leave_memory_in_the_pool()
    for _ in range(100):
        os.kill(os.getpid(), RELEASE)
        must(signal.sigwait([RELEASE]) == RELEASE, "the signal comes to who waits for it")
    must(not signal.sigpending(), "all have come")
    must(held() == CONTEXT + 256 * MIB, "it was the program's alone")
    signal.signal(RELEASE, count)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [RELEASE])
    send_and_see_the_release()
    must(within(5, lambda: calls == [RELEASE]), "unblocked, the handler is called")


def children() -> None:
    """subprocess starts by vfork, where it resets the handlers in memory that is the parent's."""
    driver.use(0)
    signal.signal(RELEASE, count)
    starts: list[Callable[[], int]] = [
        lambda: subprocess.run(["true"]).returncode,
        lambda: subprocess.run(["true"], close_fds=False).returncode,
        lambda: subprocess.run(["true"], preexec_fn=lambda: None).returncode,
        lambda: subprocess.run("true", shell=True).returncode,
        lambda: os.system("true"),
        lambda: os.waitpid(os.posix_spawnp("true", ["true"], os.environ), 0)[1],
        lambda: os.waitpid(
            os.posix_spawnp("true", ["true"], os.environ, setsigdef=[RELEASE], setsigmask=[RELEASE]), 0
        )[1],
    ]
    for number, start in enumerate(starts, 1):
        must(start() == 0, "a child ends well")
        send_and_see_the_release()
        must(within(5, lambda: len(calls) == number), "the parent's handler is there after its child")
    # A child that was started while the parent had a handler has none; of an ignored signal it knows.
    kill_itself = [sys.executable, "-c", f"import os; os.kill(os.getpid(), {RELEASE})"]
    must(subprocess.run(kill_itself).returncode == -RELEASE, "the child dies of the signal")
    signal.signal(RELEASE, signal.SIG_IGN)
    must(subprocess.run(kill_itself).returncode == 0, "the child ignores what its parent ignores")


class Requeue:
    """A training framework that asks for the job's requeue on a signal, and leaves the signal to whoever has it."""

    def __init__(self, number: int) -> None:
        self.asked = 0
        self.registered = signal.getsignal(number) in (None, signal.SIG_DFL)
        if self.registered:
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: object) -> None:
        self.asked += 1


def requeue() -> None:
    """The job is told by SIGUSR1; the release signal is the same, or another."""
    driver.use(0)
    job = Requeue(signal.SIGUSR1)
    must(job.registered, "the framework finds the signal free")
    os.kill(os.getpid(), signal.SIGUSR1)
    must(within(5, lambda: job.asked == 1), "and is asked to requeue")
    if RELEASE == signal.SIGUSR1:
        send_and_see_the_release()
        must(within(5, lambda: job.asked == 2), "by each signal")
    else:
        send_and_see_the_release()
        must(job.asked == 1, "the release asks for no requeue")
        leave_memory_in_the_pool()
        os.kill(os.getpid(), signal.SIGUSR1)
        must(within(5, lambda: job.asked == 2), "a requeue is asked for")
        must(not within(0.1, lambda: held() == CONTEXT), "and nothing is released")


def requeue_with_the_signal_moved_live() -> None:
    driver.use(0)
    job = Requeue(signal.SIGUSR1)
    send_and_see_the_release(signal.SIGUSR1)
    must(within(5, lambda: job.asked == 1), "both at first")
    policy = os.environ["CURB_POLICY"]
    with open(policy + ".new", "w") as file:
        file.write('{ "version": 1, "release": { "signal": "SIGUSR2" } }')
    os.rename(policy + ".new", policy)
    must(within(5, lambda: caught(signal.SIGUSR2)), "the edit is in force")
    send_and_see_the_release(signal.SIGUSR2)
    leave_memory_in_the_pool()
    os.kill(os.getpid(), signal.SIGUSR1)
    must(within(5, lambda: job.asked == 2), "the requeue stays")
    must(not within(0.1, lambda: held() == CONTEXT), "and nothing is released by it")
    must(signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL, "of the release the program knows nothing")


def caught(number: int) -> bool:
    """Whether this process has a handler for the signal, as the kernel says."""
    with open("/proc/self/status") as status:
        mask = next(line.split()[1] for line in status if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


PROGRAMS: dict[str, Callable[[], None]] = {
    "signal": python_handler,
    "faulthandler": faulthandler_alone,
    "faulthandler_chain": lambda: faulthandler_alone(chain=True),
    "signal_and_faulthandler": faulthandler_before_a_handler,
    "asyncio": event_loop,
    "sigwait": sigwait,
    "subprocess": children,
    "requeue": requeue,
    "requeue_with_the_signal_moved_live": requeue_with_the_signal_moved_live,
}

PROGRAMS[sys.argv[1]]()
