"""Statistics of samples that were taken in turns.

A round takes one sample of every lane, one right after the other, and begins with another lane each time: A B, B A. The samples
of two lanes in one round are a pair, so a drifting clock, or other work on the machine, affects both.
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
    """The third."""

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return Spread(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(median, low, high)


@dataclass(frozen=True)
class Figure:
    """A lane's nanoseconds of one operation, and their ratio to another lane's, pair by pair."""

    ns: Spread
    pairs: int
    base_ns: Spread | None = None
    ratio: Spread | None = None
    """A ratio of times, or of rates (more is better) where rates are measured."""
    added_ns: Spread | None = None

    @staticmethod
    def of(values: Sequence[float], base: Sequence[float] | None, rates: bool) -> Figure:
        if not base:
            return Figure(Spread.of(values), len(values))
        both = list(zip(values, base))
        ratios = [b / a if rates else a / b for a, b in both if a > 0 and b > 0]
        added = Spread.of([a - b for a, b in both])
        return Figure(Spread.of(values), len(both), Spread.of(base), Spread.of(ratios), added)
