"""Measures allocations and frees in PyTorch without a cache, with curb's cache, and with PyTorch's own. scripts/bench measures
the driver's calls."""

from __future__ import annotations

import statistics
from typing import Any

import report
from lab import Lab
from row import Row

_PAIRS, _PAIRS_QUICK = 1000, 200
_TURNS, _TURNS_QUICK = 3, 1
_NO_CACHING = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
_POLICY: dict[str, Any] = {"gpu": {"*": {"cache": {"max": "16GiB", "idle": "30s"}}}}
"""The cache can keep the largest block. No cap."""


def _cache_torch(lab: Lab, row: Row) -> None:
    """Measured, not judged."""
    lab.need("torch")
    row.verdict = "info"
    argv = lab.python("training/torch_alloc.py", str(_PAIRS_QUICK if lab.quick else _PAIRS))
    runs: dict[str, list[list[dict[str, Any]]]] = {"without caching": [], "with curb's cache": [], "PyTorch's own caching": []}
    for turn in range(_TURNS_QUICK if lab.quick else _TURNS):
        for kind, found in runs.items():
            name = f"{row.name} {kind} {turn}"
            env = {} if kind == "PyTorch's own caching" else _NO_CACHING
            under_curb = kind == "with curb's cache"
            with lab.capped(argv, lab.job(name, None, **_POLICY), env) if under_curb else lab.bare(argv, name, env) as session:
                found.append(session.expect("done", 240)["torch"])
                session.finish()
    row.details["runs"] = runs
    table = [["size", *runs]]
    for number, of_size in enumerate(runs["without caching"][0]):
        table.append([of_size["size"], *(_cell([run[number] for run in found]) for found in runs.values())])
    row.section = ["Microseconds for an allocation and its free: median, and 99th percentile.", "", *report.markdown_table(table)]


def _cell(figures: list[dict[str, Any]]) -> str:
    median, p99 = (statistics.median(one[what] for one in figures) for what in ("median_us", "p99_us"))
    return f"{median:,.2f} ({p99:,.2f})"


CACHE = {"cache: PyTorch": _cache_torch}
