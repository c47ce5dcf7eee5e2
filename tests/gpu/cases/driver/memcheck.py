"""compute-sanitizer's memcheck on the contract suite, bare and under curb. In a case that ended in both runs, the run under curb
must not have a report that the bare run lacks. The checks of the cases are not judged here, because the sanitizer and other
programs take memory too.
"""

from __future__ import annotations

import re

from cases.driver.driver import under_curb
from lab import Lab, of_toolkit
from row import Row
from session import Unavailable
from together import BARE, Outcome, Outcomes, Run

_PARTS = 6
"""The suite runs in so many processes, bare and under curb. One that exceeds _SECONDS is judged by its reports until then."""
_SECONDS = 110
_TAGS = "~[fills]~[checkpoint]~[.child]"
_OPTIONS = ["--tool", "memcheck", "--leak-check", "full", "--target-processes", "all", "--print-limit", "100000"]
# Preloads libcurb.so into the program alone, not into the sanitizer, and after the sanitizer's own library.
_INTO_PROGRAM = 'LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD:}$1"; export LD_PRELOAD; shift; exec "$@"'
_HEADLINE = re.compile(r"^========= (?P<text>\S.*)$")
_NO_REPORT = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "LEAK SUMMARY", "RACECHECK SUMMARY", "Target application")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\b[\d,]*\d\b(?= bytes)|\b\d{4,}\b|\(\d+,\d+,\d+\)")
_SUITE_ENDED = re.compile(r"^(test cases: |All tests passed)", re.M)
_CASE_ENDED = re.compile(r"^\d+\.\d+ s: (.+)$")
_END = "the end of a part"
_OWN = {
    "cuFuncGetAttribute": "called before the first launch of each kernel",
}
"""Calls that curb itself makes with the program's handles. The sanitizer reports their errors; the program does not see them."""


def plan(lab: Lab, name: str) -> list[Run]:
    sanitizer = of_toolkit("compute-sanitizer")
    suite = lab.built("tests/driver_contract")
    names = under_curb.names(suite, lab.environment(None), _TAGS)
    if not names:
        raise Unavailable(f"{suite.name} lists no cases")
    runs = []
    for part in range(_PARTS):
        cases = ",".join(map(under_curb.chosen, names[part::_PARTS]))
        argv = [str(suite), "--durations", "yes", cases]
        for kind in (BARE, "curb"):
            run = f"{kind} {part}"
            job = None
            before: list[str] = []
            env = lab.environment(None) | {"CONTRACT_KEEPS": "1"}
            if kind != BARE:
                job = lab.job(f"{name} {run}", "100%")
                job.policy.write_text(under_curb.policy(job.log_file))
                env |= {"CURB_POLICY": str(job.policy)}
                before = ["/bin/sh", "-c", _INTO_PROGRAM, "sh", str(lab.library)]
            command = [sanitizer, *_OPTIONS, *before, *argv]
            runs.append(Run(run, command, env, lab.folder_of(f"{name} {run}"), _SECONDS, 50, job))
    return runs


def reports(outcome: Outcome) -> dict[str, list[str]]:
    """Returns the headlines of reports, without addresses and amounts, by case; those at the end of the suite (leaks) under
    _END. Leaves out a case that did not end."""
    found: dict[str, list[str]] = {}
    said: list[str] = []
    for line in outcome.stdout.splitlines():
        if headline := _HEADLINE.match(line):
            if not headline["text"].startswith(_NO_REPORT):
                said.append(_NUMBER.sub("N", headline["text"]))
        elif ended := _CASE_ENDED.match(line):
            found.setdefault(ended[1], []).extend(said)
            said = []
    if _SUITE_ENDED.search(outcome.stdout):
        found[_END] = said
    return found


def judge(row: Row, outcomes: Outcomes) -> None:
    bare = [one for name, one in outcomes.items() if name.startswith(BARE)]
    curb = [one for name, one in outcomes.items() if not name.startswith(BARE)]
    known, found = ([reports(one) for one in kind] for kind in (bare, curb))
    ran = [sum(len(part.keys() - {_END}) for part in kind) for kind in (known, found)]
    if ran[0] == 0:
        raise Unavailable(f"compute-sanitizer does not run the suite here: {bare[0].ending} {bare[0].stdout[-300:]}")
    both = 0
    kinds: set[str] = set()
    new: set[str] = set()
    own: set[str] = set()
    for one, of_bare, of_curb in zip(curb, known, found, strict=True):
        for case in of_bare.keys() & of_curb.keys():
            both += case != _END
            kinds |= set(of_curb[case])
            for report in sorted(set(of_curb[case]) - set(of_bare[case])):
                if report.endswith(tuple(f"call to {call}." for call in _OWN)):
                    own.add(report)
                else:
                    new.add(report)
                    row.expect(False, f"{one.run.name}: {case}: {report}")
        row.expect(one.under_curb, f"{one.run.name}: curb was not active: it wrote no log")
    row.expect(both > 0, f"no case ran both bare and under curb: {curb[0].ending}")
    for one, other in zip(curb, bare, strict=True):
        crashed = not _SUITE_ENDED.search(one.stdout) and one.status != "hangs" and _SUITE_ENDED.search(other.stdout)
        row.expect(not crashed, f"{one.run.name}: not all of its cases have run: it {one.ending}")
    unfinished = [one.run.name for one in (*bare, *curb) if one.status == "hangs"]
    row.details |= {"kinds": sorted(kinds), "cases": {"bare": ran[0], "under curb": ran[1], "both": both}}
    row.add_note(
        f"{both} cases and sections ended both bare and under curb; {len(kinds)} kinds of reports under curb, "
        f"{len(new) or 'none'} of them new"
    )
    for report in sorted(own):
        row.add_note(f"a call of curb itself: {report}")
    if unfinished:
        row.add_note(f"stopped after {_SECONDS} s: {', '.join(unfinished)}")
