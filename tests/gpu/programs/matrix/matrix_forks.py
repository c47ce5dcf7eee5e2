"""Starts children while threads allocate: by fork, exec, vfork, posix_spawn, system and multiprocessing, and as a daemon.

A forked child cannot use CUDA; the case compares its errors with those without curb. A child that calls exec can.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from children import LIMIT_S, status_of
from talk import say

_THREADS, _CHILDREN = 8, 30
_SHELL = ["/bin/sh", "-c", "exit 3"]
_FRESH = [sys.executable, "-c", "from small_cuda import Cuda; print(Cuda().allocate(8) is not None)"]
cuda = ctypes.CDLL("libcuda.so.1")
stop = threading.Event()
rounds: list[int] = []
wrong: list[str] = []


def allocate(seed: int) -> None:
    done = 0
    while not stop.is_set():
        block = torch.full(((seed + done) % 50_000 + 1,), seed, device="cuda")
        if block.sum().item() != seed * block.numel():
            wrong.append(f"thread {seed}")
        del block
        done += 1
        if done % 50 == 0:
            torch.cuda.empty_cache()
    rounds.append(done)


def all_of(pipe: int) -> str:
    """Returns the text from a pipe until its end, or until nothing comes for LIMIT_S. Closes the pipe."""
    said = b""
    while select.select([pipe], [], [], LIMIT_S)[0] and (more := os.read(pipe, 4096)):
        said += more
    os.close(pipe)
    return said.decode()


def child(body: Callable[[], object]) -> tuple[str, int | str]:
    """Returns the result of `body` in a forked child, and the child's exit status."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            text = str(body())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    return all_of(reading), status_of(pid)


def forked(body: Callable[[], object]) -> int | str:
    """Returns the exit status of a forked child in which `body` runs and ends the child."""
    pid = os.fork()
    if pid == 0:
        body()
    return status_of(pid)


def daemon() -> str:
    """Returns the output of a daemon that uses CUDA. It is forked twice, in a session of its own, and calls exec."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            os.dup2(writing, 1)
            os.chdir(Path(__file__).parents[1])
            os.execv(_FRESH[0], _FRESH)
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    return all_of(reading).strip()


def square(number: int) -> int:
    return number * number


def on_device(number: int) -> float:
    return torch.full((1 << 16,), float(number), device="cuda").sum().item()


def with_pool(method: str, work: Callable[[int], float]) -> list[float]:
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map_async(work, range(6)).get(LIMIT_S)


def main() -> None:
    kept = torch.arange(1 << 20, device="cuda")
    threads = [threading.Thread(target=allocate, args=(seed,)) for seed in range(_THREADS)]
    for thread in threads:
        thread.start()
    say("exits", statuses=[forked(partial(os._exit, i % 7)) for i in range(_CHILDREN)])
    say("execs", statuses=[forked(partial(os.execv, _SHELL[0], _SHELL)) for _ in range(_CHILDREN)])
    say("vfork", statuses=[subprocess.run(_SHELL, check=False).returncode for _ in range(_CHILDREN)])
    say("spawn", statuses=[status_of(os.posix_spawn(_SHELL[0], _SHELL, os.environ)) for _ in range(_CHILDREN)])
    say("system", statuses=[os.waitstatus_to_exitcode(os.system("exit 5")) for _ in range(5)])
    fresh = subprocess.run(_FRESH, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    say("fresh", said=fresh.stdout.strip(), status=fresh.returncode, daemon=daemon())
    say("torch in a child", said=child(lambda: torch.zeros(1, device="cuda")))
    stop.set()
    for thread in threads:
        thread.join()
    say("pools", fork=with_pool("fork", square), forkserver=with_pool("forkserver", on_device))
    pointer = ctypes.c_uint64()
    say(
        "the driver in a child",
        allocates=child(lambda: cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20))),
        synchronises=child(lambda: cuda.cuCtxSynchronize()),
        begins=child(lambda: cuda.cuInit(0)),
    )
    say("a child that ends", status=forked(partial(sys.exit, 6)))  # runs Python's exit code, which frees its parent's tensors
    say("done", wrong=wrong[:5], kept=kept.sum().item(), worked=all(done > 10 for done in rounds))


if __name__ == "__main__":
    main()
