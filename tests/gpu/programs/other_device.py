"""One process, two devices: memory of device 1 is taken and given back while a context of device 0 is current, by each way
that names its device in another manner than by the current context.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from small_cuda import MIB, Cuda
from talk import say, wait

_PIECE = 256 * MIB
_MOST = 40
_PINNED, _DEVICE = 1, 1


class _PoolProperties(ctypes.Structure):
    _fields_ = [
        ("allocation_type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location", ctypes.c_int),
        ("security", ctypes.c_void_p),
        ("most", ctypes.c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    ]


class _AllocationProperties(ctypes.Structure):
    _fields_ = [
        ("allocation_type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location", ctypes.c_int),
        ("security", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


def taken(take: Callable[[], int | None]) -> list[int]:
    """Pieces until one is refused."""
    pieces: list[int] = []
    while len(pieces) < _MOST and (piece := take()) is not None:
        pieces.append(piece)
    return pieces


def plain(here: Cuda, there: Cuda) -> None:
    """Allocated under its own context; freed, and copied to, under the other's."""
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
    here.make_current()
    stream, made = ctypes.c_void_p(), ctypes.c_void_p()
    here.must("cuStreamCreate", ctypes.byref(stream), 0)
    properties = _PoolProperties(allocation_type=_PINNED, location_type=_DEVICE, location=there.ordinal)
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
    here.make_current()
    properties = _AllocationProperties(allocation_type=_PINNED, location_type=_DEVICE, location=there.ordinal)

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
    here, there = Cuda(0), Cuda(1)
    say("warm")
    wait()
    for way in (plain, pool, created):
        way(here, there)
    say("done")
    wait()


main()
