"""Fills two devices up to their caps, one after the other, by cuMemAlloc."""

from __future__ import annotations

from small_cuda import Cuda
from talk import say, wait

_SIZES_MIB = (256, 2)
_MOST = 256  # pieces of a size: more than the caps allow, less than the device has


def fill(cuda: Cuda) -> list[int]:
    cuda.make_current()
    pieces = []
    for mib in _SIZES_MIB:
        for _ in range(_MOST):
            pointer = cuda.allocate(mib)
            if pointer is None:
                break
            pieces.append(pointer)
    return pieces


def main() -> None:
    devices = [Cuda(0), Cuda(1)]
    totals = []
    for cuda in devices:
        cuda.make_current()
        totals.append(cuda.total_mib())
    pieces = [fill(cuda) for cuda in devices]
    say("full", pieces=[len(of_one) for of_one in pieces], total_mib=totals)
    wait()
    devices[0].make_current()
    for pointer in pieces[0] + pieces[1]:
        devices[0].free(pointer)
    say("freed")
    wait()


main()
