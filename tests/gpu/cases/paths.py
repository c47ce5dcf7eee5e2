"""All paths to memory under curb, as one case. `scripts/gpu-test paths` runs them under other preloads too."""

from __future__ import annotations

from dataclasses import asdict

import paths_report
from lab import Lab
from path_probe import PATHS, Found, probe, program
from row import Row


def _paths(lab: Lab, row: Row) -> None:
    program(lab)  # raises Unavailable once, not for each path
    table: dict[str, Found] = {}
    for path in PATHS:
        found = table[path.name] = probe(lab, path, "curb", None)
        for wrong in found.wrong:
            row.expect(False, f"{path.name}: {wrong}")
        if not path.device_figure:
            row.peak_mib = max(row.peak_mib or 0.0, found.peak_mib)
    ran = [found for found in table.values() if not found.skipped]
    row.error = ", ".join(sorted({found.error for found in ran if found.error}))
    row.goes_on = all(found.goes_on for found in ran)
    row.details["paths"] = {name: asdict(found) for name, found in table.items()}
    row.section = paths_report.lines(table)
    row.add_note(f"{sum(not found.wrong for found in ran)} of {len(ran)} paths keep to the cap, and were served all that fits")
    row.add_note(paths_report.furthest(table).removesuffix("."))


PATH_CASE = {"paths": _paths}
