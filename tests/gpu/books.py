"""curb's own account of what is held, held against the device's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from session import Log, Session
from watch import MIB

REPORT_ONLY: dict[str, Any] = {"release": {"steps": []}}
"""Members of a policy under which the signal asks for the books and gives nothing back."""

_RELEASE_TIMEOUT_S, _BOOKS_TIMEOUT_S = 5.0, 1.0
# How far the books may be from the device's figure: whichever is more.
_CLOSE_MIB, _CLOSE_SHARE = 16.0, 0.01

_LINE = re.compile(
    r"books:\s*(?P<device>\S+)\s+holds\s+(?P<held>\d+)\s*B?\s*:(?P<parts>.*);\s*the device says\s+(?P<says>\d+)"
)
_PART = re.compile(r"(?P<name>[a-z][a-z ]*?)\s+(?P<bytes>\d+)")


@dataclass(frozen=True)
class Books:
    device: str
    held: int
    parts: dict[str, int]
    """Bytes by kind: allocations, pools, graphs, mapped, managed, stack, context and code; and cached, those of the
    allocations that curb keeps for reuse."""
    says: int
    """What curb was told by the device."""

    @property
    def visible(self) -> int:
        """What NVML can see of it: managed memory is in no process's figure."""
        return self.held - self.parts.get("managed", 0)


@dataclass(frozen=True)
class Comparison:
    books_mib: float
    device_mib: float
    line: str

    @property
    def off_mib(self) -> float:
        return round(self.books_mib - self.device_mib, 1)

    @property
    def said(self) -> str:
        return f"the books say {self.books_mib:,.0f} MiB, the device {self.device_mib:,.0f}: {self.line}"

    @property
    def agrees(self) -> bool:
        return abs(self.off_mib) <= max(_CLOSE_MIB, _CLOSE_SHARE * self.device_mib)


class NoBooks(RuntimeError):
    """curb gave no account that can be read; the text says what was there instead."""


def read(message: str) -> Books:
    line = _LINE.search(message)
    if line is None:
        raise NoBooks(f"this is no line of books: {message[:200]}")
    parts = {part["name"]: int(part["bytes"]) for part in _PART.finditer(line["parts"])}
    return Books(line["device"], int(line["held"]), parts, int(line["says"]))


def compare(session: Session, log: Log, device: str = "cuda:0", index: int | None = None) -> Comparison:
    """Asks for the books by the signal while the program holds still, and asks NVML from outside. `index`: NVML's of
    that device, where several are watched."""
    seen = len(log.messages())
    session.send()
    log.wait_for("released", seen, _RELEASE_TIMEOUT_S)
    line = log.wait_for(f"books: {device} ", seen, _BOOKS_TIMEOUT_S)
    if line is None:
        said = " | ".join(log.messages()[seen:]) or "nothing"
        raise NoBooks(f"no line 'books: {device} …' in the log after SIGUSR1, only: {said[:300]}")
    held = session.watch.settle()
    if index is not None:
        held = session.watch.held_on[index]
    return Comparison(round(read(line).visible / MIB, 1), round(held / MIB, 1), line)


def worst(comparisons: Iterable[Comparison]) -> Comparison | None:
    return max(comparisons, key=lambda one: abs(one.off_mib), default=None)
