"""Python programs under curb, on the simulated driver, with stand-ins for the frameworks: scenarios.py NAME

The log of curb is the file curb.log in the working directory, at level info.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import driver_calls as driver
from driver_calls import CONTEXT, MIB, held, within

LOG = Path("curb.log")


def releases() -> list[str]:
    # Whole lines: a write across a page boundary can be read in part.
    lines = LOG.read_text().rpartition("\n")[0].splitlines() if LOG.exists() else []
    return [line for line in lines if "released " in line]


def ask() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def release() -> str:
    """Asks for a release. Returns its line in the log."""
    before = len(releases())
    ask()
    assert within(20, lambda: len(releases()) > before), "no release"
    return releases()[before]


# ---- what comes back ----


def every_framework_gives_back_on_every_device_that_is_used() -> None:  # 3 devices
    import cupy
    import torch
    from numba.cuda.cudadrv.driver import driver as numba

    own = cupy.MemoryPool()
    cupy.cuda.allocator = own.malloc
    for device in (1, 2):
        torch.cuda.cache(device, 16 * MIB)
        cupy.get_default_memory_pool().malloc(32 * MIB)
        own.malloc(64 * MIB)
        numba.context(device).deallocations.add(128 * MIB)
        numba.context(device).memory_manager.deallocations.add(256 * MIB)
        assert held(device) == CONTEXT + 496 * MIB
    kept = driver.take(8 * MIB)
    line = release()
    assert "frameworks 992 MiB, pressure" in line, line
    assert (held(1), held(2)) == (CONTEXT, CONTEXT + 8 * MIB)
    assert held(0) == 0, "a context was made on a device that the program does not use"
    driver.give(kept)
    line = release()
    assert "frameworks 0 B (nothing cached)" in line, line
    numba.context(2).deallocations.is_disabled = True
    numba.context(2).deallocations.add(2 * MIB)
    line = release()
    assert "frameworks 0 B (nothing cached)" in line, line
    assert held(2) == CONTEXT + 2 * MIB


def a_device_whose_context_is_gone_is_left_alone() -> None:  # 2 devices
    from numba.cuda.cudadrv.driver import driver as numba

    numba.context(1).deallocations.add(2 * MIB)
    driver.use(0)
    driver.must("cuDevicePrimaryCtxReset_v2", 1)
    assert held(1) == 0
    line = release()
    assert "frameworks 0 B (nothing cached)" in line, line
    assert held(1) == 0


def pytorch_on_another_allocator_is_not_asked() -> None:
    import torch

    torch.cuda.cache(0, 16 * MIB)
    torch.cuda.backend = "cudaMallocAsync"
    line = release()
    assert "(torch: its allocator is cudaMallocAsync, which caches nothing itself)" in line, line
    assert torch.cuda.asked == 0


def nothing_is_imported() -> None:  # although Python would find the stand-ins
    driver.use(0)
    before = set(sys.modules)
    line = release()
    assert "(no framework loaded that can be asked)" in line, line
    assert set(sys.modules) == before


def memory_that_the_program_frees_meanwhile_is_its_own() -> None:
    driver.use(0)
    ends = threading.Event()

    def work() -> None:
        driver.use(0)
        while not ends.is_set():
            for pointer in [driver.take(8 * MIB) for _ in range(8)]:
                driver.give(pointer)

    thread = threading.Thread(target=work)
    thread.start()
    lines = [release() for _ in range(10)]
    ends.set()
    thread.join()
    for line in lines:
        assert "frameworks 0 B (no framework loaded that can be asked)" in line, line


def a_framework_that_is_being_imported_is_not_asked() -> None:
    import torch

    driver.use(0)
    torch.__spec__._initializing = True
    line = release()
    assert "(no framework loaded that can be asked)" in line, line
    assert torch.cuda.asked == 0


class _Array:
    """Memory that only the garbage collector frees: it refers to itself."""

    def __init__(self, size: int) -> None:
        self.itself = self
        self.pointer = driver.take(size)

    def __del__(self) -> None:
        driver.give(self.pointer)


def _garbage_and_a_pool_of_its_own() -> None:
    import cupy

    driver.use(0)
    gc.disable()
    _Array(16 * MIB)
    mine = cupy.MemoryPool()
    mine.malloc(32 * MIB)
    globals()["mine"] = mine


def garbage_is_collected_and_every_pool_found_when_the_policy_says_so() -> None:
    _garbage_and_a_pool_of_its_own()
    line = release()
    assert "frameworks 48 MiB" in line, line
    assert held() == CONTEXT


def garbage_is_not_collected_otherwise() -> None:
    _garbage_and_a_pool_of_its_own()
    release()
    assert held() == CONTEXT + 48 * MIB


# ---- what goes wrong in a framework ----


def an_exception_of_a_framework_is_reported_and_the_others_are_asked() -> None:
    import cupy
    import torch

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    def pool() -> None:
        driver.use(0)
        cupy.get_default_memory_pool().malloc(16 * MIB)

    def fails(error: BaseException) -> Callable[[], None]:
        def answer() -> None:
            raise error

        return answer

    for error, reported in (
        (RuntimeError("CUDA error:\n an illegal   access"), "torch: RuntimeError: CUDA error: an illegal access"),
        (SystemExit(3), "torch: SystemExit: 3"),
        (Mute(), "torch: Mute: its text cannot be had"),
        (OSError("\udcff"), "torch: OSError: ?"),
    ):
        pool()
        torch.cuda.answer = fails(error)
        line = release()
        assert f"frameworks 16 MiB ({reported}" in line, line
    class Broken:
        @property
        def cuda(self) -> None:
            raise RuntimeError("not today")

    pool()
    sys.modules["torch"] = Broken()  # type: ignore[assignment]
    line = release()
    assert "frameworks 16 MiB (torch: RuntimeError: not today)" in line, line
    pool()
    sys.modules["torch"] = None  # type: ignore[assignment]  # as programs block an import
    line = release()
    assert "frameworks 16 MiB, pressure" in line, line


def one_release_right_after_the_other_is_not_deferred() -> None:
    import cupy

    driver.use(0)
    for _ in range(300):
        cupy.get_default_memory_pool().malloc(16 * MIB)
        line = release()
        assert "frameworks 16 MiB" in line, line


# ---- the interpreter ----


def a_module_of_a_sub_interpreter_alone_is_not_touched() -> None:
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters  # before Python 3.13
    import cupy

    driver.use(0)
    cupy.get_default_memory_pool().malloc(16 * MIB)
    inside = interpreters.create()
    # New modules: the imports of the stand-ins need not work in a sub-interpreter.
    interpreters.run_string(
        inside,
        "import sys, types\n"
        "torch = sys.modules['torch'] = types.ModuleType('torch')\n"
        "cupy = sys.modules['cupy'] = types.ModuleType('cupy')\n",
    )
    assert "frameworks 16 MiB, pressure" in release()  # asks the main interpreter's module, without an error
    interpreters.run_string(inside, "assert sys.modules['torch'] is torch")
    interpreters.destroy(inside)


def a_lock_that_is_held_for_long_holds_up_neither_the_plan_nor_the_next_step() -> None:
    import torch

    torch.cuda.cache(0, 16 * MIB)
    block = ctypes.c_uint64(driver.take(32 * MIB))
    sys.setswitchinterval(1000)
    ask()
    libc, cuda = ctypes.PyDLL(None), ctypes.PyDLL("libcuda.so.1")  # whose calls keep the GIL
    libc.usleep(1_000_000)
    assert cuda.cuMemFree_v2(block) == 0  # is not the release's
    libc.usleep(3_500_000)
    sys.setswitchinterval(0.005)
    first = releases()  # on a busy machine the second one may be there already
    assert first
    assert "frameworks 0 B (deferred: waits for Python's lock (GIL))" in first[0], first[0]
    assert within(10, lambda: len(releases()) == 2), "nothing came after the lock was free"
    assert "16 MiB" in releases()[1] and "on Python's lock (GIL), which was waited for: frameworks 16 MiB" in releases()[1]
    assert held() == CONTEXT


def the_end_of_the_interpreter_waits_for_frameworks_that_are_asked() -> None:
    import torch

    torch.cuda.cache(0, 16 * MIB)
    working = threading.Event()

    def answer() -> None:
        working.set()
        ctypes.CDLL(None).usleep(300_000)  # without the GIL, as frameworks free
        Path("answered").touch()

    torch.cuda.answer = answer
    ask()
    assert working.wait(10)
    atexit.register(lambda: Path("ends").write_text(str(Path("answered").exists())))


def nobody_is_asked_while_the_interpreter_ends() -> None:
    import torch

    torch.cuda.cache(0, 16 * MIB)
    line = release()
    assert "frameworks 16 MiB" in line, line

    class AtTheVeryEnd:
        def __del__(self, release: Callable[[], str] = release, torch: object = torch.cuda) -> None:
            reported = "frameworks 0 B (Python is ending)" in release()
            os._exit(0 if reported and torch.asked == 1 else 5)  # type: ignore[attr-defined]

    globals()["at_the_very_end"] = AtTheVeryEnd()
    sys.exit(6)  # the status if Python deletes nothing at its end


def a_fork_child_is_asked_nothing_and_ends_at_once() -> None:
    import torch

    torch.cuda.cache(0, 16 * MIB)
    working, forked = threading.Event(), threading.Event()
    torch.cuda.answer = lambda: (working.set(), forked.wait(10))
    ask()
    assert working.wait(10)
    child = os.fork()  # the release holds its lock
    if child == 0:
        began = time.monotonic()
        atexit._run_exitfuncs()
        if time.monotonic() - began > 1:
            os._exit(4)
        torch.cuda.answer = lambda: os._exit(5)
        os.kill(os.getpid(), signal.SIGUSR1)  # ends it, as it would without curb
        os._exit(6)
    _, status = os.waitpid(child, 0)
    forked.set()
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGUSR1, status
    assert within(10, releases)


def a_release_during_a_capture_leaves_frameworks_for_later() -> None:
    import torch

    torch.cuda.cache(0, 16 * MIB)
    with driver.Capture():
        line = release()
        assert "frameworks 0 B (deferred: graph capture)" in line, line
        assert torch.cuda.asked == 0
    assert within(20, lambda: len(releases()) == 2), "what was postponed is not made up for"
    line = releases()[1]
    assert "on the end of a graph capture" in line and "frameworks 16 MiB" in line, line


def what_was_asked_is_not_pressed() -> None:
    import torch

    ctypes.CDLL(os.environ["C10_CUDA"])
    torch.cuda.cache(0, 16 * MIB)
    said = "waits for the program's next large allocation" if "ALONE" in os.environ else "torch has just been asked"
    line = release()
    assert f"pressure 0 B ({said})" in line, line


globals()[sys.argv[1]]()
