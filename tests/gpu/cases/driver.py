"""The driver itself under curb: what single calls cost, and the contract suite on the real driver."""

from __future__ import annotations

import os
import re
import statistics
import subprocess

from lab import Lab, Unavailable
from row import Row


def call_times(lab: Lab, row: Row) -> None:
    """Bare and capped in turn. Measured, not judged: the figures are for people."""
    row.verdict = "info"
    argv = lab.compiled("driver_bench.cu", "-lcuda")
    bare: list[dict[str, float]] = []
    capped: list[dict[str, float]] = []
    for turn in range(1 if lab.quick else 3):
        with lab.bare(argv, f"bench bare {turn}") as session:
            bare.append(session.expect("done", 30)["ns"])
        with lab.capped(argv, lab.job(f"bench capped {turn}", "64GiB")) as session:
            capped.append(session.expect("done", 30)["ns"])
    for call in bare[0]:
        without, with_curb = (statistics.median(run[call] for run in runs) for runs in (bare, capped))
        row.details[call] = {"bare_ns": without, "capped_ns": with_curb, "ratio": round(with_curb / without, 3)}
        row.add_note(f"{call}: {without / 1e3:.2f} -> {with_curb / 1e3:.2f} us (x {with_curb / without:.2f})")


def contract(lab: Lab, row: Row) -> None:
    """The suite that says what the driver does, which the simulated driver passes too, on the real one and without curb."""
    found = [
        path
        for folder in (lab.build / "tests" / "contract", lab.build / "tests", lab.build / "bin")
        for path in sorted(folder.glob("*contract*"))
        if path.is_file() and os.access(path, os.X_OK) and path.suffix == ""
    ]
    if not found:
        raise Unavailable(f"there is no contract suite under {lab.build}")
    command = [str(found[0])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120, check=False)
    except subprocess.TimeoutExpired:
        row.expect(False, f"{found[0].name} did not end within 120 s")
        return
    lines = (done.stdout + done.stderr).strip().splitlines()
    summary = next((line for line in reversed(lines) if re.search(r"test cases?:|tests passed|tests ran", line)), "")
    row.details = {"program": str(found[0]), "status": done.returncode, "end": lines[-40:]}
    row.expect(done.returncode == 0, f"{found[0].name} ended with status {done.returncode}")
    row.add_note(summary.strip() or (lines[-1] if lines else "no output"))
