"""Uses two devices in one process: `two_devices.py fill|other`. Waits for a command after each event.

fill   fills both devices up to their caps by cuMemAlloc: "full"; then frees all: "freed"
other  allocates and frees memory of device 1 while a context of device 0 is current, in each way that does not take the device
       from the current context: "warm", "plain", "pool", "created", "done"
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import partial

from small_cuda import MIB, Cuda
from talk import say, wait

_PIECE = 256 * MIB
_MOST = 256  # pieces of a size: more than fit under the caps, fewer than fit on the device
_PINNED, _DEVICE = 1, 1


class _Properties(ctypes.Structure):
    """Serves as CUmemAllocationProp and as CUmemPoolProps, which begin with the same members. It has the size of the larger."""

    _fields_ = [
        ("allocation_type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location", ctypes.c_int),
        ("rest", ctypes.c_ubyte * 72),
    ]


def taken(take: Callable[[], int | None]) -> list[int]:
    """Allocates pieces until one is refused. Returns them."""
    pieces: list[int] = []
    while len(pieces) < _MOST and (piece := take()) is not None:
        pieces.append(piece)
    return pieces


def fill(devices: list[Cuda]) -> None:
    totals, pieces = [], []
    for cuda in devices:
        cuda.make_current()
        totals.append(cuda.total_mib())
        pieces.append([piece for mib in (256, 2) for piece in taken(partial(cuda.allocate, mib))])
    say("full", pieces=[len(of_one) for of_one in pieces], total_mib=totals)
    wait()
    devices[0].make_current()
    for pointer in pieces[0] + pieces[1]:
        devices[0].free(pointer)
    say("freed")


def plain(here: Cuda, there: Cuda) -> None:
    """Allocates under the device's own context. Copies to the memory and frees it while the other device's context is current."""
    there.make_current()
    pieces = taken(lambda: there.allocate(256))
    here.make_current()
    source = here.allocate(256)
    assert source is not None
    here.must("cuMemsetD8_v2", ctypes.c_uint64(source), 0x5A, ctypes.c_size_t(_PIECE))
    target = ctypes.c_uint64(pieces[0])
    here.must("cuMemcpyPeer", target, there.context, ctypes.c_uint64(source), here.context, ctypes.c_size_t(_PIECE))
    read = (ctypes.c_ubyte * 4096)()
    there.make_current()
    there.must("cuMemcpyDtoH_v2", read, ctypes.c_uint64(pieces[0] + _PIECE - len(read)), ctypes.c_size_t(len(read)))
    here.make_current()
    say("plain", pieces=len(pieces), copied=bytes(read) == b"\x5a" * len(read))
    wait()
    for pointer in [*pieces, source]:
        here.free(pointer)


def pool(here: Cuda, there: Cuda) -> None:
    stream, made = ctypes.c_void_p(), ctypes.c_void_p()
    here.must("cuStreamCreate", ctypes.byref(stream), 0)
    properties = _Properties(allocation_type=_PINNED, location_type=_DEVICE, location=there.ordinal)
    here.must("cuMemPoolCreate", ctypes.byref(made), ctypes.byref(properties))

    def take() -> int | None:
        pointer = ctypes.c_uint64()
        served = here.served("cuMemAllocFromPoolAsync", ctypes.byref(pointer), ctypes.c_size_t(_PIECE), made, stream)
        return pointer.value if served else None

    pieces = taken(take)
    here.must("cuStreamSynchronize", stream)
    say("pool", pieces=len(pieces))
    wait()
    for pointer in pieces:
        here.must("cuMemFreeAsync", ctypes.c_uint64(pointer), stream)
    here.must("cuStreamSynchronize", stream)
    here.must("cuMemPoolDestroy", made)
    here.must("cuStreamDestroy_v2", stream)


def created(here: Cuda, there: Cuda) -> None:
    properties = _Properties(allocation_type=_PINNED, location_type=_DEVICE, location=there.ordinal)

    def take() -> int | None:
        handle = ctypes.c_uint64()
        size = ctypes.c_size_t(_PIECE)
        served = here.served("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), ctypes.c_uint64(0))
        return handle.value if served else None

    handles = taken(take)
    say("created", pieces=len(handles))
    wait()
    for handle in handles:
        here.must("cuMemRelease", ctypes.c_uint64(handle))


def main() -> None:
    devices = [Cuda(0), Cuda(1)]
    if sys.argv[1] == "fill":
        fill(devices)
    else:
        say("warm")
        wait()
        for way in (plain, pool, created):
            way(*devices)
        say("done")
    wait()


main()
