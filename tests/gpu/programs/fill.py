"""What the programs that fill the GPU have in common: the order of events, told once.

warm up -> fill to the cap -> "full" -> (told) free everything and compute -> "idle", with the framework's cache full ->
(the test asks for a release) -> (told) allocate and compute again -> "done".

The warm-up runs every kernel that is used later at the same shapes: the driver loads code at the first launch, and this
is about what the cap does to a program in full swing, as a training script is after its first steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from talk import say, wait


class Framework(Protocol):
    """One framework's way of doing the same things."""

    sizes: tuple[int, ...]
    """MiB of the pieces, the largest first: the next one is tried when the one before does not fit any more."""

    def warm_up(self) -> None: ...
    def piece(self, mib: int, mark: int) -> Any: ...
    def holds(self, piece: Any, mark: int) -> bool: ...
    def compute(self) -> bool: ...


def fill_up(framework: Framework) -> tuple[list[Any], dict[str, Any]]:
    """Allocates until the smallest size is refused, and says what the refusals looked like."""
    pieces: list[Any] = []
    filled = 0
    errors: list[str] = []
    message = ""
    for mib in framework.sizes:
        while len(pieces) < 4096:
            try:
                pieces.append(framework.piece(mib, len(pieces) % 100 + 1))
            except Exception as error:  # which kind it is, is the question
                errors.append(kind(error))
                message = message or str(error)
                break
            filled += mib
    return pieces, {
        "errors": sorted(set(errors)),
        "message": message[:400],
        "pieces": len(pieces),
        "filled_mib": filled,
        "intact": all(framework.holds(piece, index % 100 + 1) for index, piece in enumerate(pieces)),
    }


def kind(error: Exception) -> str:
    return f"{type(error).__module__.split('.')[0]}.{type(error).__name__}"


def run(framework: Framework, reserved: Callable[[], int] | None = None, result: Callable[[], Any] | None = None) -> None:
    """`reserved`: the bytes that the framework's allocator keeps. `result`: a result to compare between two runs."""
    framework.warm_up()
    say("warm", result=result() if result else None)
    wait()
    pieces, found = fill_up(framework)
    say("full", **found)
    wait()
    pieces.clear()
    correct = framework.compute()
    say("idle", correct=correct, cached_mib=reserved() // 2**20 if reserved else None)
    wait()
    pieces = [framework.piece(framework.sizes[0], mark) for mark in (1, 2)]
    intact = all(framework.holds(piece, mark) for mark, piece in enumerate(pieces, 1))
    say("done", correct=intact and framework.compute())
