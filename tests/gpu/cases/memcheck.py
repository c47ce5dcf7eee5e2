"""compute-sanitizer's memcheck on the contract suite, bare and under curb: no report that the bare run does not have. What
the cases themselves find is not judged here: the sanitizer and the neighbours take memory too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from lab import Lab, Unavailable, of_toolkit
from row import Row
from together import BARE, Outcome, Outcomes, Run

sys.path.append(str(Path(__file__).resolve().parents[2] / "contract"))
import under_curb  # noqa: E402

_PARTS = 6
"""Processes of each kind. A part that does not come to its end is judged by what it has reported."""
_TAGS = "~[fills]~[checkpoint]~[.child]"
_OPTIONS = ["--tool", "memcheck", "--leak-check", "full", "--target-processes", "all", "--print-limit", "100000"]
# The library into the program alone, behind what the sanitizer puts there.
_INTO_PROGRAM = 'LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD:}$1"; export LD_PRELOAD; shift; exec "$@"'
_HEADLINE = re.compile(r"^========= (?P<text>\S.*)$", re.M)
_NO_REPORT = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "LEAK SUMMARY", "RACECHECK SUMMARY", "Target application")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\b[\d,]*\d\b(?= bytes)|\b\d{4,}\b|\(\d+,\d+,\d+\)")
_SUITE_ENDED = re.compile(r"^(test cases: |All tests passed)", re.M)
_CASE_ENDED = re.compile(r"^\d+\.\d+ s: (.+)$", re.M)


def plan(lab: Lab, name: str) -> list[Run]:
    sanitizer = of_toolkit("compute-sanitizer")
    suite = lab.build / "tests" / "driver_contract"
    names = under_curb.names(suite, lab.environment(None), _TAGS) if suite.exists() else []
    if not names:
        raise Unavailable("there is no tests/driver_contract in the build")
    runs = []
    for part in range(_PARTS):
        cases = ",".join(map(under_curb.chosen, names[part::_PARTS]))
        argv = [str(suite), "--durations", "yes", cases]
        for kind in (BARE, "curb"):
            run = f"{kind} {part}"
            job = None
            before: list[str] = []
            env = lab.environment(None)
            if kind != BARE:
                job = lab.job(f"{name} {run}", "100%")
                job.policy.write_text(under_curb.policy(job.log_file))
                env |= {"CURB_POLICY": str(job.policy)}
                before = ["/bin/sh", "-c", _INTO_PROGRAM, "sh", str(lab.library)]
            command = [sanitizer, *_OPTIONS, *before, *argv]
            runs.append(Run(run, command, env, lab.folder_of(f"{name} {run}"), 110, 50, job))
    return runs


def reports(outcome: Outcome) -> list[str]:
    """The headline of each, without addresses and amounts."""
    found = [line["text"] for line in _HEADLINE.finditer(outcome.stdout)]
    return [_NUMBER.sub("N", text) for text in found if not text.startswith(_NO_REPORT)]


def judge(row: Row, outcomes: Outcomes) -> None:
    bare = [one for name, one in outcomes.items() if name.startswith(BARE)]
    curb = [one for name, one in outcomes.items() if not name.startswith(BARE)]
    ran = [sum(len(set(_CASE_ENDED.findall(one.stdout))) for one in kind) for kind in (bare, curb)]
    if ran[0] == 0:
        raise Unavailable(f"compute-sanitizer does not run the suite here: {bare[0].how} {bare[0].stdout[-300:]}")
    known = [report for one in bare for report in reports(one)]
    found = [report for one in curb for report in reports(one)]
    new = sorted(set(found) - set(known))
    for report in new:
        where = next(one.run.name for one in curb if report in reports(one))
        row.expect(False, f"{where}: {report} ({found.count(report)} times)")
    row.expect(ran[1] > 0, f"nothing ran under curb: {curb[0].how}")
    for one, other in zip(curb, bare, strict=True):
        came_through = _SUITE_ENDED.search(one.stdout) or one.status == "hangs" or not _SUITE_ENDED.search(other.stdout)
        row.expect(bool(came_through), f"{one.run.name}: not all of its cases have run: it {one.how}")
        row.expect(one.under_curb, f"{one.run.name}: curb wrote no log: it was not there")
    unfinished = [one.run.name for one in (*bare, *curb) if one.status == "hangs"]
    row.details |= {"reports": {"bare": sorted(set(known)), "curb": sorted(set(found))}, "cases": ran}
    row.add_note(
        f"{ran[1]} cases and sections under curb, {ran[0]} bare; {len(found)} reports of {len(set(found))} kinds, "
        f"bare {len(known)} of {len(set(known))}; {len(new) or 'no'} kind that the bare run does not have"
    )
    if unfinished:
        row.add_note(f"stopped after 110 s: {', '.join(unfinished)}")
