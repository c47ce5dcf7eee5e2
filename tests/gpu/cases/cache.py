"""What the cache is worth to PyTorch, whose own allocator is the measure: allocating and freeing in a loop, bare and under
curb with a cache. What the driver's own calls cost then is measured by scripts/bench."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import figure
import report
from lab import Lab
from row import Row
from session import Session

_PAIRS, _PAIRS_QUICK = 1000, 200
_TURNS, _TURNS_QUICK = 3, 1
_TIMEOUT_S = 240
_NO_CACHING = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


@dataclass(frozen=True)
class Line:
    """One allocator's figures: by size, the median of the runs' medians, and of their 99th percentiles."""

    name: str
    style: str
    median_us: dict[int, float]
    p99_us: dict[int, float]

    def record(self) -> dict[str, Any]:
        return {"name": self.name, "median_us": self.median_us, "p99_us": self.p99_us}


def cache_torch(lab: Lab, row: Row) -> None:
    """Measured, not judged: how far PyTorch without its own caching gets with curb's."""
    lab.need("torch")
    row.verdict = "info"
    argv = lab.python("torch_alloc.py", str(_PAIRS_QUICK if lab.quick else _PAIRS))
    runs: dict[str, list[dict[str, Any]]] = {"own": [], "none": [], "curb": []}
    for turn in range(_TURNS_QUICK if lab.quick else _TURNS):
        runs["own"].append(_done(lab.bare(argv, f"{row.name} own {turn}")))
        runs["none"].append(_done(lab.bare(argv, f"{row.name} none {turn}", _NO_CACHING)))
        job = lab.job(f"{row.name} curb {turn}", None, **_policy())
        runs["curb"].append(_done(lab.capped(argv, job, _NO_CACHING)))
    lines = [
        _line("without caching, bare", "bare", runs["none"], "torch"),
        _line("without caching, with curb's cache", "curb", runs["curb"], "torch"),
        _line("PyTorch's own caching", "other", runs["own"], "torch"),
    ]
    _report(row, "torch.empty and del", "torch-cache", lines)
    _note_gain(row, lines[0], lines[1])


CACHE = {"cache: PyTorch": cache_torch}


def _policy() -> dict[str, Any]:
    """Room for the largest block, and no cap."""
    return {"gpu": {"*": {"cache": {"max": "16GiB", "idle": "30s"}}}}


def _done(session: Session) -> dict[str, Any]:
    with session:
        said = session.expect("done", _TIMEOUT_S)
        session.finish()
    return said


def _line(name: str, style: str, runs: list[dict[str, Any]], key: str) -> Line:
    def middle(what: str) -> dict[int, float]:
        sizes = [one["bytes"] for one in runs[0][key]]
        return {
            size: round(statistics.median(run[key][index][what] for run in runs), 3) for index, size in enumerate(sizes)
        }

    return Line(name, style, middle("median_us"), middle("p99_us"))


def _report(row: Row, title: str, name: str, lines: list[Line]) -> None:
    row.details["lines"] = [line.record() for line in lines]
    table = [["size", *(line.name for line in lines)]]
    for size in lines[0].median_us:
        table.append([_size(size), *(f"{line.median_us[size]:,.2f} ({line.p99_us[size]:,.2f})" for line in lines)])
    row.section = ["Microseconds for a pair: median, and 99th percentile.", "", *report.markdown_table(table)]
    series = [(line.name, line.style, sorted(line.median_us.items())) for line in lines]
    row.figures[name] = figure.times_by_size(f"{title}: median of a pair", series, _size)


def _note_gain(row: Row, bare: Line, curb: Line) -> None:
    gains = {size: bare.median_us[size] / curb.median_us[size] for size in bare.median_us}
    row.add_note("; ".join(f"{_size(size)}: x {gain:,.0f}" for size, gain in gains.items()))


def _size(size: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"
