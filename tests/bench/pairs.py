"""Samples taken in turns, and what pairs of them say.

A round takes one sample of every lane, one right after the other, and begins with another lane each time: A B, B A. What
two lanes said in the same round is a pair, so a clock that drifts, or a neighbour that comes and goes, meets both of it.
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
    """What a lane said, in nanoseconds of one operation, and what it is beside another, pair by pair."""

    ns: Spread
    pairs: int
    base_ns: Spread | None = None
    ratio: Spread | None = None
    """Of times, or of rates (more is better) where rates are measured."""
    added_ns: Spread | None = None

    @staticmethod
    def of(values: Sequence[float], base: Sequence[float] | None, rates: bool) -> Figure:
        if not base:
            return Figure(Spread.of(values), len(values))
        both = list(zip(values, base))
        ratios = [b / a if rates else a / b for a, b in both if a > 0 and b > 0]
        added = Spread.of([a - b for a, b in both])
        return Figure(Spread.of(values), len(both), Spread.of(base), Spread.of(ratios), added)
