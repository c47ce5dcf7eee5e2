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
    suite = str(found[0])
    # A process for each case: what the driver answers with a crash is one case's failure, not the end of the rest.
    listed = subprocess.run([suite, "--list-test-names-only"], capture_output=True, text=True, check=False)
    names = [line.strip() for line in listed.stdout.splitlines() if line.strip()]
    failed: dict[str, list[str]] = {}
    for name in names:
        try:
            done = subprocess.run(
                [suite, re.sub(r"([,\[\]\\])", r"\\\1", name)], capture_output=True, text=True, errors="replace", timeout=30, check=False
            )
            if done.returncode != 0:
                failed[name] = done.stdout.strip().splitlines()[-30:]
        except subprocess.TimeoutExpired:
            failed[name] = ["did not end within 30 s"]
    row.details = {"cases": len(names), "failed": failed}
    row.expect(bool(names), f"{suite} lists no cases")
    row.expect(not failed, f"{len(failed)} of {len(names)}: " + "; ".join(failed))
    row.add_note(f"{len(names) - len(failed)} of {len(names)} cases hold on this driver")
