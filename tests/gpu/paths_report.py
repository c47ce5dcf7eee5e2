"""The table of paths as Markdown lines and as its own two files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import report
from path_probe import CURB, PATHS, Found
from row import CAP_MIB

Columns = dict[str, dict[str, Found]]
"""Label of the column -> name of the path -> what was found."""

_EXPLANATION = f"""\
By `scripts/gpu-test paths`: one program a path, under a cap of {CAP_MIB:,} MiB, up to 24 pieces of 256 MiB, or as the row says, all
kept. *Peak*: the most MiB that NVML showed for the process, context included; for managed memory, the rise of the device's use.
A path passes if its peak is at most {CAP_MIB + 2:,} MiB, all that had room was served, the refusal is the driver's own
`CUDA_ERROR_OUT_OF_MEMORY`, and a memset, a kernel and the path itself work afterwards. A library's array may exceed the cap once:
it is loaded lazily, and its size is not known before. *Books*: by how much curb's account differs from the device's figure, at the
cap or after the frees (the worse); at most 16 MiB or 1 %.
"""

_READ_ON = "HAMi-core, vgpu-manager and the limit that MPS has: read on an H100 under the same cap on 2026-11-21, not run here."
_READ_HEAD = ("HAMi-core", "vgpu-manager", "MPS pinned limit")
_READ = {
    "plain": ("3,846", "3,846", "3,844"),
    "plain-2MiB": ("4,096", "4,096", ""),
    "plain-1MiB+1": ("**6,662**", "4,096", "4,098"),
    "pitch": ("4,074", "4,074", ""),
    "managed": ("3,854", "**6,670**", ""),
    "async": ("3,846, wrong error code", "3,846", ""),
    "pool": ("**6,662**", "3,846", "3,844"),
    "reserved": ("**7,174**", "3,846, refuses all", "3,844, serves 13"),
    "vmm": ("3,846", "3,846", "3,844"),
    "array": ("**6,662**", "2,054, over-charges", "3,844"),
    "array-3d": ("**6,662**", "2,054, over-charges", ""),
    "mipmap-1": ("**6,662**", "4,102", ""),
    "graph": ("**6,662**", "**6,662**", "4,068"),
    "stack-192KiB": ("**50,942**", "**50,942**", "516"),
}


def lines(columns: Columns) -> list[str]:
    """curb's table, then what is wrong in it."""
    ours = columns.get(CURB.label, {})
    rows: list[tuple[str, ...]] = [("path", "verdict", "peak MiB", "served", "error", "goes on", "books")]
    rows += [
        (
            name,
            _verdict(found),
            f"{found.peak_mib:,.0f}",
            f"{found.served:,}",
            found.error,
            _yes(found.goes_on),
            _off(found),
        )
        for name, found in ours.items()
    ]
    wrong = [f"* {name}: {said.splitlines()[0]}" for name, found in ours.items() for said in found.wrong]
    skipped = [f"* {name}: skipped, {found.skipped}" for name, found in ours.items() if found.skipped]
    return [*report.markdown_table(rows), "", furthest(ours), *([""] if wrong or skipped else []), *wrong, *skipped]


def furthest(table: dict[str, Found]) -> str:
    """The path on which the books were furthest from the device."""
    off = {name: found.worst_off_mib for name, found in table.items() if found.worst_off_mib is not None}
    if not off:
        return "There are no books to compare with the device."
    name = max(off, key=lambda one: abs(off[one]))
    return f"Books and device differ by {off[name]:+.1f} MiB at the most ({name})."


def beside(columns: Columns) -> list[str]:
    """Peaks under every column that was run, and those that were read."""
    labels = list(columns)
    rows = [("path", *labels, *_READ_HEAD)]
    for path in PATHS:
        # curb's own peaks stand in its table.
        compared = path.row in _READ or len(columns) > 1
        if compared and any(path.name in column for column in columns.values()):
            ran = [_peak(columns[label].get(path.name)) for label in labels]
            rows.append((path.name, *ran, *_READ.get(path.row, ("",) * len(_READ_HEAD))))
    return report.markdown_table(rows)


def write(machine: dict[str, str], columns: Columns, folder: Path) -> list[Path]:
    content = {
        "machine": machine,
        "columns": {
            label: {name: asdict(found) for name, found in column.items()} for label, column in columns.items()
        },
    }
    text = [f"# Paths to memory, {machine['gpu']}, {machine['date']}", "", _EXPLANATION, report.versions(machine), ""]
    text += lines(columns) if CURB.label in columns else []
    text += ["", "## Beside others", "", f"Peaks in MiB, pieces served. {_READ_ON}", "", *beside(columns), ""]
    return report.write_files(machine, folder, "paths", json.dumps(content, indent=1), "\n".join(text))


def _verdict(found: Found) -> str:
    return "skipped" if found.skipped else "FAIL" if found.wrong else "pass"


def _peak(found: Found | None) -> str:
    if found is None or found.skipped:
        return ""
    peak = f"{found.peak_mib:,.0f}"
    over = found.peak_mib > CAP_MIB + 2
    parts = [f"**{peak}**" if over else peak, f"{found.served:,} served"]
    parts += [found.error] if found.error not in ("", "CUDA_ERROR_OUT_OF_MEMORY") else []
    parts += ["does not go on"] if found.goes_on is False else []
    return ", ".join(parts)


def _yes(value: bool | None) -> str:
    return {True: "yes", False: "no", None: ""}[value]


def _off(found: Found) -> str:
    return "" if found.worst_off_mib is None else f"{found.worst_off_mib:+.1f}"
