"""Makes driver calls of PyTorch fail, by the driver of tests/between. Reports PyTorch's error for each, and if it works afterwards.

Only calls whose failure PyTorch reports by an exception. Some other failures end the process by std::terminate, with and without
curb.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from talk import say

_CODES = {"out of memory": 2, "invalid value": 1, "invalid context": 201, "illegal address": 700, "unknown": 999}
_MIB = 1 << 20
driver = ctypes.CDLL("libcuda.so.1")
host = torch.arange(1 << 16, dtype=torch.float32)
device = torch.ones(1 << 16, device="cuda")


def take() -> bool:
    return torch.empty(64 * _MIB, dtype=torch.uint8, device="cuda").numel() == 64 * _MIB


def give_back() -> bool:
    torch.empty(64 * _MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    return True


def launch() -> bool:
    return bool((device + 1).numel())


def copy() -> bool:
    return bool(host.cuda().numel())


def compute() -> bool:
    x = host.cuda() + device
    y = (x.view(256, 256) @ x.view(256, 256)).double().sum()
    torch.cuda.synchronize()
    return y.item() > 0


def all_of_it() -> bool:
    torch.cuda.empty_cache()
    block = torch.empty(64 * _MIB, dtype=torch.uint8, device="cuda").fill_(3)
    right = compute() and block[-1].item() == 3
    del block
    torch.cuda.empty_cache()
    return right


_CALLS: dict[bytes, Callable[[], bool]] = {
    b"cuMemAlloc_v2": take,
    b"cuMemFree_v2": give_back,
    b"cuLaunchKernel": launch,
    b"cuMemcpyHtoDAsync_v2": copy,
}


def tried(operation: Callable[[], bool]) -> str:
    """Returns the result, or the beginning of the error, without the amounts that differ under a cap."""
    try:
        return "right" if operation() else "wrong"
    except Exception as error:
        first = str(error).splitlines()[0]
        return f"{type(error).__name__}: {first.split('. Tried')[0]}"


def goes_on() -> bool:
    """Returns true if one of three tries works. The first call may report an error that the failed call left behind."""
    return any(tried(all_of_it) == "right" for _ in range(3))


def by_name() -> None:
    for name, operation in _CALLS.items():
        for code, number in _CODES.items():
            torch.cuda.empty_cache()
            driver.curb_sim_fail_next(name, number, 1)
            outcome = tried(operation)
            driver.curb_sim_fail_next(b"", 0, 0)
            say("failed", call=name.decode(), code=code, outcome=outcome, goes_on=goes_on())


for _ in range(3):
    all_of_it()
by_name()
torch.cuda.empty_cache()
say("done", left=torch.cuda.memory_allocated())
