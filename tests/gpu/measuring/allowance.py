"""Reads a process's allowance of a device over time from curb's log, and compares it with the held memory that NVML showed."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from measuring.watch import MIB
from session import Entry

Series = Sequence[tuple[float, int]]
"""Pairs of a moment by time.monotonic() and the bytes from then on."""

# A log line has its time cut to the millisecond, from a thread that may have waited for a core.
_LOG_LATE_S = 0.010

_LINE = re.compile(r"cuda:(?P<ordinal>\d+).*?(?P<number>\d+(?:\.\d+)?) (?P<unit>B|KiB|MiB|GiB|TiB)")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@dataclass(frozen=True)
class Change:
    at: float
    bytes: int
    """The allowance from then on."""
    fell: bool
    """True if a release lowered it; false if it grew by a step."""


def read(entries: Iterable[Entry], start: int, ordinal: int = 0) -> list[Change]:
    """Returns the changes of that device's allowance, which is `start` at first."""
    found: list[Change] = []
    for entry in entries:
        if not entry.message.startswith("allowance: "):
            continue
        line = _LINE.search(entry.message)
        if line is None:
            raise ValueError(f"this line on an allowance cannot be read: {entry.message[:200]}")
        if int(line["ordinal"]) == ordinal:
            size = round(float(line["number"]) * _UNITS[line["unit"]])
            found.append(Change(entry.at, size, size < (found[-1].bytes if found else start)))
    return found


def series(begin: float, start: int, changes: Iterable[Change]) -> list[tuple[float, int]]:
    return [(begin, start), *((change.at, change.bytes) for change in changes)]


def furthest_over_mib(held: Series, allowed: Series, sampling_s: float) -> float:
    """Returns by how much the held memory exceeded the allowance at the worst moment. Negative: it never did.

    `sampling_s`: the longest time between two samples. A change that a sample shows may have happened at any moment since the
    sample before, so it is compared with the highest allowance in that time. A lowered allowance is compared with the least
    that was held around that moment.
    """
    rises = [amount - max(_within(allowed, at - sampling_s, at + _LOG_LATE_S)) for at, amount in held]
    falls = [min(_within(held, at - _LOG_LATE_S, at + sampling_s)) - amount for at, amount in allowed]
    return max([*rises, *falls], default=0) / MIB


def _within(of: Series, begin: float, end: float) -> list[int]:
    """Returns every amount that was valid at some moment between the two. Before the first change it is 0."""
    first = bisect.bisect_right(of, begin, key=lambda one: one[0])
    before = of[first - 1][1] if first else 0
    return [before, *(amount for at, amount in of[first:] if at <= end)]
