"""The driver itself under curb: what single calls cost, and the contract suite on the real driver."""

from __future__ import annotations

import re
import statistics
import subprocess
from pathlib import Path

from lab import Lab, Unavailable
from row import Row
from session import Job

# Cases that are meant to differ under curb, by how their names begin.
_BY_DESIGN = {
    "what a pool keeps, unused and seen complete,": "curb sees frees complete and trims before it passes a refusal on",
}


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
    suite, names = _contract_suite(lab)
    failed = _failed(suite, names, None)
    row.details = {"cases": len(names), "failed": failed}
    row.expect(bool(names), f"{suite.name} lists no cases")
    row.expect(not failed, f"{len(failed)} of {len(names)}: " + "; ".join(failed))
    row.add_note(f"{len(names) - len(failed)} of {len(names)} cases hold on this driver")


def contract_under_curb(lab: Lab, row: Row) -> None:
    """The same with curb in front and nothing to refuse: what the driver does, it still does."""
    suite, names = _contract_suite(lab)
    job = lab.job(row.name, "100%", gpu={"*": {"cap": "100%", "report": "device"}})
    limit = "a cap of 100 %, the device's own figures reported"
    if not _is_valid(lab, job):
        job = lab.job(row.name, "100%", gpu={})
        limit = "no cap"
    failed = _failed(suite, names, lab.capped_environment(job))
    # What fails bare too is not curb's doing.
    bare = _failed(suite, list(failed), None)
    differ = {name: said for name, said in failed.items() if name not in bare}
    meant = [name for name in differ if name.startswith(tuple(_BY_DESIGN))]
    row.details = {
        "cases": len(names),
        "policy": limit,
        "differ_from_bare": differ,
        "by_design": meant,
        "fail_bare_too": list(bare),
    }
    wrong = [name for name in differ if name not in meant]
    row.expect(bool(names), f"{suite.name} lists no cases")
    row.expect(job.log_file.exists(), "curb wrote no log: it was not there")
    row.expect(not wrong, f"{len(wrong)} of {len(names)} hold bare and not under curb: " + "; ".join(wrong))
    row.add_note(f"{len(names) - len(failed)} of {len(names)} cases hold under curb ({limit})")
    for begins, why in _BY_DESIGN.items():
        if any(name.startswith(begins) for name in meant):
            row.add_note(f"by design not: '{begins} …': {why}")
    if bare:
        row.add_note(f"{len(bare)} fail without curb too")


def conformance(lab: Lab, row: Row) -> None:
    """Every entry point by every way to reach it, bare and under curb."""
    program = lab.build / "tests" / "conformance"
    if not program.exists():
        raise Unavailable("there is no tests/conformance in the build")
    done = subprocess.run(
        [program, "--curb", lab.library], capture_output=True, text=True, errors="replace", timeout=300, check=False
    )
    lines = done.stdout.strip().splitlines()
    row.details = {"output": lines[-200:]}
    row.expect(done.returncode == 0, f"status {done.returncode}: " + "; ".join([*lines[-5:], done.stderr.strip()[-300:]]))
    row.add_note(lines[-1] if lines else "it said nothing")


def _contract_suite(lab: Lab) -> tuple[Path, list[str]]:
    """The program and the names of its cases."""
    suite = lab.build / "tests" / "driver_contract"
    if not suite.exists():
        raise Unavailable("there is no tests/driver_contract in the build")
    listed = subprocess.run([suite, "--list-test-names-only"], capture_output=True, text=True, check=False)
    return suite, [line.strip() for line in listed.stdout.splitlines() if line.strip()]


def _failed(suite: Path, names: list[str], env: dict[str, str] | None) -> dict[str, list[str]]:
    """The cases that fail, with what they said. A process for each: what the driver answers with a crash is one case's
    failure, not the end of the rest."""
    failed = {}
    for name in names:
        try:
            command = [str(suite), re.sub(r"([,\[\]\\])", r"\\\1", name)]
            done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", timeout=30, check=False)
            if done.returncode != 0:
                failed[name] = done.stdout.strip().splitlines()[-30:] or [f"status {done.returncode}"]
        except subprocess.TimeoutExpired:
            failed[name] = ["did not end within 30 s"]
    return failed


def _is_valid(lab: Lab, job: Job) -> bool:
    """Whether this curb knows every member of the policy."""
    check = [str(lab.curb), "policy", "check", str(job.policy)]
    return lab.curb.exists() and subprocess.run(check, capture_output=True, check=False).returncode == 0
