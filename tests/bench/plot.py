"""Rows beside each other as an SVG text: a dot for each median, a bar from quartile to quartile.

On the real driver the ratio of times is drawn, from 0.8 to 1.2, and what is beyond stands at the edge with its number.
Elsewhere it is what is added, by powers of ten, since a ratio to a driver that costs nothing says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from gpu_tests import svg
from pairs import Spread
from running import Result
from subjects import BARE, CACHED, CURB, TRACE

_LEFT, _PLOT, _RIGHT, _TOP, _LINE, _GAP = 480, 420, 56, 64, 13, 9
_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #333 }
  .title { font-weight: 600; font-size: 14px }
  .grid { stroke: #888; stroke-opacity: 0.3 } .one { stroke: #888 }
  .curb { --ink: #2f6fc4 } .cached { --ink: #4a7d3a } .traced { --ink: #8a6d9e } .peer { --ink: #b3261e }
  line.mark { stroke: var(--ink); stroke-width: 3; stroke-opacity: 0.5 } circle, text.mark { fill: var(--ink) }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd }
    .curb { --ink: #7db2f8 } .cached { --ink: #9fce8c } .traced { --ink: #c6a8dc } .peer { --ink: #f2877f }
  }
"""
_STYLES = {CURB: "curb", CACHED: "cached", TRACE: "traced"}


def beside(results: Sequence[Result], title: str) -> str:
    """Empty, if there is nothing to draw."""
    ratios = any(result.driver == "gpu" for result in results)
    drawn = [(result, spread) for result in results if (spread := _drawn(result, ratios))]
    if not drawn:
        return ""
    axis = _Near() if ratios else _Powers([spread for _, spread in drawn])
    names = list(dict.fromkeys(result.row.name for result, _ in drawn))
    rows = {name: [both for both in drawn if both[0].row.name == name] for name in names}
    bottom = _TOP + sum(_LINE * len(row) + _GAP for row in rows.values())
    lines: list[str] = []
    place = 12
    for subject in dict.fromkeys(result.subject for result, _ in drawn):
        lines.append(f'<text class="{_STYLES.get(subject, "peer")} mark" x="{place}" y="40">{escape(subject)}</text>')
        place += 8 * len(subject) + 16
    what = "times as long as what it is compared with" if ratios else "added, ns"
    lines.append(f'<text x="{_LEFT + _PLOT}" y="40" text-anchor="end">{what}</text>')
    for value in axis.marks:
        style = "one" if ratios and value == 1 else "grid"
        lines.append(f'<path class="{style}" d="M{axis.x(value):.1f} {_TOP - 12} V{bottom}"/>')
        lines.append(f'<text x="{axis.x(value):.1f}" y="{bottom + 18}" text-anchor="middle">{value:,g}</text>')
    y = _TOP
    for name, row in rows.items():
        middle_y = y + _LINE * (len(row) - 1) / 2
        lines.append(f'<text x="{_LEFT - 12}" y="{middle_y + 4:.1f}" text-anchor="end">{escape(name)}</text>')
        for result, spread in row:  # a line for each subject, so that none hides another
            style = _STYLES.get(result.subject, "peer")
            low, middle, high = (axis.x(value) for value in (spread.low, spread.median, spread.high))
            lines.append(f'<line class="{style} mark" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>')
            lines.append(f'<circle class="{style}" cx="{middle:.1f}" cy="{y}" r="3.5"/>')
            if axis.beyond(spread.median):
                lines.append(f'<text class="{style} mark" x="{middle + 8:.1f}" y="{y + 4}">{spread.median:,.3g}</text>')
            y += _LINE
        y += _GAP
    return svg(title, (_LEFT + _PLOT + _RIGHT, bottom + 32), _STYLE, 12, lines)


class _Powers:
    """A logarithmic axis over all that is drawn."""

    def __init__(self, spreads: Sequence[Spread]) -> None:
        self._low = math.floor(math.log10(min(spread.low for spread in spreads)))
        self._high = max(math.ceil(math.log10(max(spread.high for spread in spreads))), self._low + 1)
        self.marks = [10.0**power for power in range(self._low, self._high + 1)]

    def x(self, value: float) -> float:
        return _LEFT + (math.log10(value) - self._low) / (self._high - self._low) * _PLOT

    def beyond(self, value: float) -> bool:
        return False


class _Near:
    """A linear axis around 1."""

    marks = (0.8, 0.9, 1, 1.1, 1.2)

    def x(self, value: float) -> float:
        within = min(max(value, self.marks[0]), self.marks[-1])
        return _LEFT + (within - self.marks[0]) / (self.marks[-1] - self.marks[0]) * _PLOT

    def beyond(self, value: float) -> bool:
        return not self.marks[0] <= value <= self.marks[-1]


def _drawn(result: Result, ratios: bool) -> Spread | None:
    """What a subject differs in, as times; on a logarithmic axis only what was added."""
    figure = result.figure
    if figure is None or result.subject in (BARE, result.against):
        return None
    if not ratios:
        return figure.added_ns if figure.added_ns and figure.added_ns.low > 0 and not result.group.rates else None
    ratio = figure.ratio
    if ratio and result.group.rates:
        return Spread(1 / ratio.median, 1 / ratio.high, 1 / ratio.low)
    return ratio
