"""Rows beside each other as an SVG text: a dot for each median, a bar from quartile to quartile, on a logarithmic axis. On
the real driver the ratio is drawn; elsewhere what is added, since a ratio to a driver that costs nothing says nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from pairs import Spread
from running import OWN, Result
from subjects import CACHED, CURB, TRACE

_LEFT, _PLOT, _RIGHT, _TOP, _LINE = 360, 420, 24, 64, 20
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
    low = math.floor(math.log10(min(spread.low for _, spread in drawn)))
    high = max(math.ceil(math.log10(max(spread.high for _, spread in drawn))), low + 1)
    names = list(dict.fromkeys(result.row.name for result, _ in drawn))
    bottom = _TOP + _LINE * len(names)

    def x(value: float) -> float:
        return _LEFT + (math.log10(value) - low) / (high - low) * _PLOT

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _PLOT + _RIGHT} {bottom + 32}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="12" y="20">{escape(title)}</text>',
    ]
    at = 12.0
    for subject in dict.fromkeys(result.subject for result, _ in drawn):
        lines.append(f'<text class="{_STYLES.get(subject, "peer")} mark" x="{at:.0f}" y="40">{escape(subject)}</text>')
        at += 8 * len(subject) + 16
    what = "times what it is compared with" if ratios else "added, ns"
    lines.append(f'<text x="{_LEFT + _PLOT}" y="40" text-anchor="end">{what}</text>')
    for power in range(low, high + 1):
        style = "one" if ratios and power == 0 else "grid"
        lines.append(f'<path class="{style}" d="M{x(10.0**power):.1f} {_TOP - 12} V{bottom}"/>')
        lines.append(f'<text x="{x(10.0**power):.1f}" y="{bottom + 18}" text-anchor="middle">{10.0**power:,g}</text>')
    for number, name in enumerate(names):
        y = _TOP + _LINE * number
        lines.append(f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(name)}</text>')
        for result, spread in drawn:
            if result.row.name == name:
                style = _STYLES.get(result.subject, "peer")
                lines.append(f'<line class="{style} mark" x1="{x(spread.low):.1f}" x2="{x(spread.high):.1f}" y1="{y}" y2="{y}"/>')
                lines.append(f'<circle class="{style}" cx="{x(spread.median):.1f}" cy="{y}" r="3.5"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _drawn(result: Result, ratios: bool) -> Spread | None:
    """What can stand on a logarithmic axis: something was added, and to the bare driver."""
    figure = result.figure
    if figure is None or (result.subject in OWN and result.subject == result.against):
        return None
    spread = figure.ratio if ratios else figure.added_ns
    if spread is None or (result.group.rates and not ratios) or spread.low <= 0:
        return None
    return spread
