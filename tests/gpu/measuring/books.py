"""Compares curb's books with NVML's figure for the process."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from measuring.watch import MIB
from session import Log, Session

REPORT_ONLY: dict[str, Any] = {"release": {"steps": []}}
"""Members of a policy. Under them the release signal logs the books and releases nothing."""

_RELEASE_TIMEOUT_S, _BOOKS_TIMEOUT_S = 5.0, 1.0
# The books may differ from NVML's figure by so many MiB, or by this share of it if that is more.
_CLOSE_MIB, _CLOSE_SHARE = 16.0, 0.01

# `books: cuda:0 holds 5 B: allocations 3, managed 2, …; the device says 3`
_LINE = re.compile(r"books:\s*\S+\s+holds\s+(?P<held>\d+)\s*B?\s*:(?P<parts>.*);\s*the device says\s+\d+")
_MANAGED = re.compile(r"\bmanaged\s+(\d+)")


@dataclass(frozen=True)
class Comparison:
    books_mib: float
    device_mib: float
    line: str

    @property
    def off_mib(self) -> float:
        return round(self.books_mib - self.device_mib, 1)

    @property
    def text(self) -> str:
        return f"curb's books have {self.books_mib:,.0f} MiB, NVML shows {self.device_mib:,.0f}: {self.line}"

    @property
    def agrees(self) -> bool:
        return abs(self.off_mib) <= max(_CLOSE_MIB, _CLOSE_SHARE * self.device_mib)


class NoBooks(RuntimeError):
    """curb logged no readable line of books. The text has what it logged."""


def visible(message: str) -> int:
    """Returns the bytes in a line of books without managed memory, which NVML counts for no process. Raises NoBooks."""
    line = _LINE.search(message)
    if line is None:
        raise NoBooks(f"this is no line of books: {message[:200]}")
    managed = _MANAGED.search(line["parts"])
    return int(line["held"]) - (int(managed[1]) if managed else 0)


def compare(session: Session, log: Log, device: str = "cuda:0", index: int | None = None) -> Comparison:
    """Requests the books by SIGUSR1 while the program is idle, and compares them with NVML's figure. `index`: NVML's index of
    the device, if the session watches several. Raises NoBooks."""
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
    return Comparison(round(visible(line) / MIB, 1), round(held / MIB, 1), line)


def worst(comparisons: Iterable[Comparison]) -> Comparison | None:
    return max(comparisons, key=lambda one: abs(one.off_mib), default=None)
