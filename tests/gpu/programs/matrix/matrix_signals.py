"""SIGUSR1 in every situation: `matrix_signals.py own` with the program's own handler, `matrix_signals.py none` without one. Without
a handler and without curb the signal would end the program.

It arrives before CUDA starts; while threads compute (a thousand a second from another process, and some for each thread); while
it is blocked; and while Python ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import torch
from talk import say

_THREADS, _ROUNDS = 8, 120
_STORM = "import os, sys, time\n" + "\n".join(
    [
        "end = time.monotonic() + float(sys.argv[2])",
        "while time.monotonic() < end:",
        "    try:",
        "        os.kill(int(sys.argv[1]), 10)",
        "    except ProcessLookupError:",
        "        break",
        "    time.sleep(0.001)",
    ]
)
libc = ctypes.CDLL(None)
handled = 0


def count(number: int, frame: object) -> None:
    global handled
    handled += 1


def storm(seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", _STORM, str(os.getpid()), str(seconds)], stdout=subprocess.DEVNULL)


def compute(seed: int, sums: dict[int, float]) -> None:
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(100, (256, 256), generator=generator, dtype=torch.float64)
    total = 0.0
    for turn in range(_ROUNDS):
        x = start.cuda()
        y = torch.empty((turn % 7 + 1) << 18, device="cuda").fill_(turn)
        total += (x @ x).sum().item() + y.double().sum().item()
        del x, y
        if turn % 20 == 19:
            torch.cuda.empty_cache()
    sums[seed] = total


def under_load() -> dict[int, float]:
    sums: dict[int, float] = {}
    threads = [threading.Thread(target=compute, args=(seed, sums)) for seed in range(_THREADS)]
    outside = storm(3)
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or outside.poll() is None:
        for thread in threads:
            if thread.is_alive() and thread.native_id:
                libc.tgkill(os.getpid(), thread.native_id, signal.SIGUSR1)  # harmless if the thread has ended
        time.sleep(0.002)
    return sums


def blocked() -> dict[str, bool]:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    before = handled
    for _ in range(20):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    value = torch.ones(1 << 20, device="cuda").sum().item()
    pending, quiet = signal.SIGUSR1 in signal.sigpending(), handled == before
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    return {"pending": pending, "quiet": quiet, "computes": value == 1 << 20, "delivered": not signal.sigpending()}


def main(handler: str) -> None:
    if handler == "own":
        signal.signal(signal.SIGUSR1, count)
        for _ in range(20):
            os.kill(os.getpid(), signal.SIGUSR1)
    before = handled
    torch.ones(1, device="cuda")  # before this, curb does not handle the signal
    say("sums", sums=sorted(under_load().items()))
    say("blocked", **blocked())
    if handler == "own":
        if not before or handled < before + 100:
            sys.exit(f"{handled} signals were handled, {before} of them before CUDA")
        # At its end Python resets its handlers to the default action, which ends the process. An ignored signal stays ignored.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    kept = torch.ones(1 << 22, device="cuda")
    storm(4)
    time.sleep(0.2)
    say("ends", value=kept.sum().item())


main(sys.argv[1])
