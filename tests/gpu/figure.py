"""Draws amounts over time as SVG, without any package. The picture is readable on light and on dark pages, and at a width
of 360 px."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from html import escape

Series = Sequence[tuple[float, float]]
"""Pairs of a time in seconds and the GiB from then on."""

_WIDTH, _HEIGHT = 480, 350
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 82, 84, 48
_LINE = 18  # from one line of text to the next
_LETTER = 8  # width of most letters

_STYLE = """
  text { font: 15px system-ui, sans-serif; fill: #333 }
  .title { font-weight: 600 }
  .grid { stroke: #888; stroke-opacity: 0.3; fill: none }
  .held { fill: #3b7dd8; fill-opacity: 0.35; stroke: #2f6fc4; stroke-width: 1.5 }
  .allowance { fill: none; stroke: #c2571a; stroke-width: 2; stroke-dasharray: 6 4 }
  .cap { fill: none; stroke: #b3261e; stroke-width: 1.5 }
  .mark { fill: none; stroke: #777; stroke-dasharray: 2 3 }
  text.held { fill: #2f6fc4; fill-opacity: 1; stroke: none } text.allowance { fill: #c2571a; stroke: none }
  text.cap { fill: #b3261e; stroke: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd }
    .held { fill: #6aa5f4; stroke: #7db2f8 } .allowance { stroke: #f0a065 } .cap { stroke: #f2877f }
    .mark { stroke: #aaa }
    text.held { fill: #7db2f8 } text.allowance { fill: #f0a065 } text.cap { fill: #f2877f }
  }
"""


def held_and_allowed(
    title: str, held: Series, allowance: Series, cap_gib: float, marks: Sequence[tuple[float, str]], end_s: float
) -> str:
    """Draws held memory as a filled step line from 0 to `end_s`, the allowance as a dashed one, the cap, and labelled moments."""
    held, allowance = _before(end_s, held), _before(end_s, allowance)
    most = max([cap_gib, *(amount for _, amount in [*held, *allowance])])
    frame = _Frame(end_s, math.ceil(most + 0.01))
    lines = [
        f'<path class="cap" d="M{frame.x(0):.1f} {frame.y(cap_gib):.1f} H{frame.x(end_s):.1f}"/>',
        f'<path class="allowance" d="{frame.steps(allowance, end_s)}"/>',
    ]
    return _picture(title, frame, held, lines, marks, [("cap", cap_gib), ("allowance", _last(allowance)), ("held", _last(held))])


def held_alone(title: str, held: Series, marks: Sequence[tuple[float, str]], end_s: float) -> str:
    """Draws held memory as a filled step line from 0 to `end_s`, and labelled moments."""
    held = _before(end_s, held)
    frame = _Frame(end_s, math.ceil(max(amount for _, amount in held) + 0.01))
    return _picture(title, frame, held, [], marks, [])


def _before(end_s: float, series: Series) -> Series:
    return [one for one in series if one[0] < end_s]


def _picture(
    title: str, frame: _Frame, held: Series, lines: list[str], marks: Sequence[tuple[float, str]], names: list[tuple[str, float]]
) -> str:
    area = f'{frame.steps(held, frame.seconds)} V{frame.y(0):.1f} H{frame.x(0):.1f} Z'
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        *(
            f'<text class="title" x="8" y="{20 + _LINE * number}">{escape(line)}</text>'
            for number, line in enumerate(textwrap.wrap(title, (_WIDTH - 16) // (_LETTER + 1)))
        ),
        *frame.axes(),
        f'<path class="held" d="{area}"/>',
        *lines,
        *frame.marks(marks),
        *frame.names(names),
        "</svg>",
    ]
    return "\n".join(drawn) + "\n"


def _last(series: Series) -> float:
    return series[-1][1] if series else 0.0


class _Frame:
    """Converts seconds and GiB to coordinates of the picture."""

    def __init__(self, seconds: float, gib: int) -> None:
        self.seconds = max(seconds, 1e-3)
        self._gib = gib

    def x(self, seconds: float) -> float:
        within = min(max(seconds, 0.0), self.seconds)
        return _LEFT + within / self.seconds * (_WIDTH - _LEFT - _RIGHT)

    def y(self, gib: float) -> float:
        return _HEIGHT - _BOTTOM - gib / self._gib * (_HEIGHT - _TOP - _BOTTOM)

    def steps(self, series: Series, end_s: float) -> str:
        """Returns a step line from 0 s to `end_s`. It starts with the last amount at or before 0 s."""
        at_first = [amount for seconds, amount in series if seconds <= 0]
        path = f"M{self.x(0):.1f} {self.y(at_first[-1] if at_first else 0):.1f}"
        for seconds, amount in series:
            if seconds > 0:
                path += f" H{self.x(seconds):.1f} V{self.y(amount):.1f}"
        return path + f" H{self.x(end_s):.1f}"

    def axes(self) -> list[str]:
        left, right, bottom = self.x(0), self.x(self.seconds), self.y(0)
        lines = []
        heights = range(0, self._gib + 1, _round_step(self._gib))
        for gib in heights:
            y = self.y(gib)
            unit = " GiB" if gib == heights[-1] else ""
            lines.append(f'<path class="grid" d="M{left:.1f} {y:.1f} H{right:.1f}"/>')
            lines.append(f'<text x="{left - 6:.1f}" y="{y + 5:.1f}" text-anchor="end">{gib}{unit}</text>')
        for seconds in range(0, int(self.seconds) + 1, _round_step(self.seconds)):
            x = self.x(seconds)
            lines.append(f'<path class="grid" d="M{x:.1f} {bottom:.1f} v5"/>')
            lines.append(f'<text x="{x:.1f}" y="{bottom + 20:.1f}" text-anchor="middle">{seconds}</text>')
        lines.append(f'<text x="{(left + right) / 2:.1f}" y="{_HEIGHT - 10}" text-anchor="middle">seconds</text>')
        return lines

    def marks(self, marks: Sequence[tuple[float, str]]) -> list[str]:
        """Draws the moments, with their words above. A word that would touch the one before stands a line higher."""
        lines: list[str] = []
        ends = [-math.inf, -math.inf]  # of the last word of the lower line, of the upper one
        for seconds, word in sorted(marks):
            x, half = self.x(seconds), len(word) * _LETTER / 2
            middle = min(max(x, half), _WIDTH - half)
            row = 0 if middle - half > ends[0] + _LETTER else 1
            ends[row] = middle + half
            lines.append(f'<path class="mark" d="M{x:.1f} {_TOP - 4 - _LINE * row} V{self.y(0):.1f}"/>')
            lines.append(f'<text x="{middle:.1f}" y="{_TOP - 8 - _LINE * row}" text-anchor="middle">{escape(word)}</text>')
        return lines

    def names(self, lines: Sequence[tuple[str, float]]) -> list[str]:
        """Draws each name at the right end of its line, from the top down. Moves names apart that would touch."""
        placed: list[str] = []
        above = -math.inf
        for name, gib in sorted(lines, key=lambda line: -line[1]):
            y = max(self.y(gib) + 4, above + _LINE)
            above = y
            placed.append(f'<text class="{name}" x="{_WIDTH - _RIGHT + 8}" y="{y:.1f}">{name}</text>')
        return placed


def _round_step(length: float) -> int:
    """Returns the smallest round step that divides the axis into at most ten parts."""
    return next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if length / step <= 10 or step == 1000)
