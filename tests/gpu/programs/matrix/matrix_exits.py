"""Ends programs that hold tensors, streams, graphs, events and pinned memory, in every way of WAYS. Importing PyTorch takes
longer than all the rest, so one process imports it and forks a child for each way, before CUDA starts.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from children import status_of
from talk import say

libc = ctypes.CDLL(None)
kept: list[object] = []


def work() -> float:
    return torch.ones(1 << 20, device="cuda").sum().item()


def hold() -> None:
    """Creates the objects that live until the end."""
    x = torch.ones(1 << 22, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
        torch.matmul(torch.ones(256, 256, device="cuda"), torch.ones(256, 256, device="cuda"))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = x + y
    graph.replay()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    pinned = torch.ones(1 << 20).pin_memory()
    x[: 1 << 20].copy_(pinned, non_blocking=True)
    kept.extend([x, side, y, graph, z, event, pinned])
    kept.append(kept)  # a cycle, which only the garbage collector frees
    print("holds", z[-1].item(), flush=True)


def later(seconds: float, last: str) -> None:
    time.sleep(seconds)
    sys.stdout.write(f"{last} {work()}\n")  # one write: with print() the lines of two threads could mix
    sys.stdout.flush()


def later_ends(seconds: float, status: int) -> None:
    later(seconds, "another thread")
    os._exit(status)


def raise_it() -> None:
    raise RuntimeError("raised by the program")


def leave_threads() -> None:
    """Python waits for these threads at its end."""
    for seconds in (0.1, 0.5):
        threading.Thread(target=later, args=(seconds, "thread")).start()


def leave_main() -> None:
    """The main thread ends by pthread_exit; later another thread ends the process."""
    threading.Thread(target=later_ends, args=(0.5, 9)).start()
    libc.pthread_exit(None)


def allocate_at_exit() -> None:
    atexit.register(lambda: print("at exit", work(), flush=True))
    sys.exit(0)


def work_on_streams() -> None:
    """The device still computes while the program ends."""
    for _ in range(20):
        kept.append(torch.ones(2048, 2048, device="cuda") @ torch.ones(2048, 2048, device="cuda"))


def exit_in_handler() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(10))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)


WAYS = {
    "return with all alive": lambda: None,
    "return while the device works": work_on_streams,
    "sys.exit": lambda: sys.exit(3),
    "os._exit": lambda: os._exit(4),
    "abort": os.abort,
    "an exception": raise_it,
    "quick_exit": lambda: libc.quick_exit(5),
    "exit of C": lambda: libc.exit(6),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "sys.exit in a handler": exit_in_handler,
    "threads at work": leave_threads,
    "atexit that allocates": allocate_at_exit,
    "pthread_exit from main": leave_main,
    "exec": lambda: os.execv("/bin/sh", ["sh", "-c", "exit 8"]),
}


def start(file: Path) -> int:
    """Forks. The child writes its stdout to the file. Returns the child's pid, and 0 in the child."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        said = os.open(file, os.O_WRONLY | os.O_CREAT)
        os.dup2(said, 1)
        os.close(said)
    return pid


def main() -> str | None:
    """Reports how each child ended. In a child, returns at once the way in which it must end."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    folder = Path(tempfile.mkdtemp())
    files = {way: folder / str(number) for number, way in enumerate(WAYS)}
    pids: dict[str, int] = {}
    for way, file in files.items():
        pids[way] = start(file)
        if pids[way] == 0:
            return way
    for way, file in files.items():
        say("ended", way=way, status=status_of(pids[way]), said=file.read_text())
    shutil.rmtree(folder)
    return None


way_to_end = main()
if way_to_end is not None:
    hold()
    WAYS[way_to_end]()
