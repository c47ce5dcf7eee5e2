"""Statistics of samples that lanes took in turns.

A round takes one sample of each lane, one right after the other. The next round starts with another lane: A B, B A. The samples
of two lanes in one round are a pair, so a drifting clock or other work on the machine affects both.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    """The first quartile."""
    high: float
    """The third quartile."""

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return Spread(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(median, low, high)


@dataclass(frozen=True)
class Figure:
    """A lane's nanoseconds of one operation, and the comparison with another lane, pair by pair."""

    ns: Spread
    pairs: int
    base_ns: Spread | None = None
    ratio: Spread | None = None
    """A ratio of times; of rates (more is better) if the group measures rates."""
    added_ns: Spread | None = None

    @staticmethod
    def of(values: Sequence[float], base: Sequence[float] | None, rates: bool) -> Figure:
        if not base:
            return Figure(Spread.of(values), len(values))
        both = list(zip(values, base))
        ratios = [b / a if rates else a / b for a, b in both if a > 0 and b > 0]
        added = Spread.of([a - b for a, b in both])
        return Figure(Spread.of(values), len(both), Spread.of(base), Spread.of(ratios), added)
