"""Writes the table of paths as lines of Markdown, and as a page and a JSON file of its own."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import report
from path_probe import PATHS, Found
from row import CAP_MIB

_EXPLANATION = f"""\
By `scripts/gpu-test paths`: one program for each path, under a cap of {CAP_MIB:,} MiB. It keeps up to 24 pieces of 256 MiB, if the
row does not say otherwise. *Peak*: the most MiB that NVML showed for the process, context included; for managed memory, the rise
of the device's use. A path passes if its peak is at most {CAP_MIB + 2:,} MiB, every piece that fits was served, the refusal is
`CUDA_ERROR_OUT_OF_MEMORY`, and a memset, a kernel and the path itself work afterwards. An array of a module or library may exceed
the cap once, because its size is unknown until the driver has loaded it: curb unloads the module again, which NVML seldom shows;
the library stays. *Books*: by how much curb's books differ from NVML's figure, at the
cap or after the frees (the worse); at most 16 MiB or 1 %.
"""
_YES = {True: "yes", False: "no", None: ""}


def lines(ours: dict[str, Found]) -> list[str]:
    """Returns curb's table, then its failures and skipped paths. `ours`: results by path."""
    rows: list[tuple[str, ...]] = [("path", "verdict", "peak MiB", "served", "error", "goes on", "books")]
    for name, one in ours.items():
        verdict = "skipped" if one.skipped else "FAIL" if one.wrong else "pass"
        off = "" if one.worst_off_mib is None else f"{one.worst_off_mib:+.1f}"
        rows.append((name, verdict, f"{one.peak_mib:,.0f}", f"{one.served:,}", one.error, _YES[one.goes_on], off))
    wrong = [f"* {name}: {said.splitlines()[0]}" for name, found in ours.items() for said in found.wrong]
    wrong += [f"* {name}: skipped, {found.skipped}" for name, found in ours.items() if found.skipped]
    return [*report.markdown_table(rows), "", furthest(ours), *([""] if wrong else []), *wrong]


def furthest(table: dict[str, Found]) -> str:
    """Returns a line on the path whose books differed most from the device."""
    off = {name: found.worst_off_mib for name, found in table.items() if found.worst_off_mib is not None}
    if not off:
        return "There are no books to compare with the device."
    name = max(off, key=lambda one: abs(off[one]))
    return f"Books and device differ by {off[name]:+.1f} MiB at the most ({name})."


def beside(columns: dict[str, dict[str, Found]]) -> list[str]:
    """Returns a table of peaks: a row for each path, a column for each label."""
    names = [path.name for path in PATHS if any(path.name in column for column in columns.values())]
    rows = [(name, *(_peak(column.get(name)) for column in columns.values())) for name in names]
    return report.markdown_table([("path", *columns), *rows])


def write(machine: dict[str, str], columns: dict[str, dict[str, Found]], folder: Path) -> list[Path]:
    as_json = {
        "machine": machine,
        "columns": {label: {name: asdict(found) for name, found in column.items()} for label, column in columns.items()},
    }
    text = [f"# Paths to memory, {machine['gpu']}, {machine['date']}", "", _EXPLANATION, report.versions(machine), ""]
    text += [*lines(columns["curb"]), "", "## Beside others", "", "Peaks in MiB, pieces served.", "", *beside(columns), ""]
    return report.write_files(machine, folder, "paths", json.dumps(as_json, indent=1), "\n".join(text))


def _peak(found: Found | None) -> str:
    if found is None or found.skipped:
        return ""
    peak = f"{found.peak_mib:,.0f}"
    parts = [f"**{peak}**" if found.peak_mib > CAP_MIB + 2 else peak, f"{found.served:,} served"]
    parts += [found.error] if found.error not in ("", "CUDA_ERROR_OUT_OF_MEMORY") else []
    parts += ["does not go on"] if found.goes_on is False else []
    return ", ".join(parts)
