"""Calls of the real driver fail on command. The driver of tests/between forwards to the real one, and the programs of tests/fault
run on it as on the simulated driver. Each way of using memory has a process, in which one call after the other fails with each
of five codes.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

from lab import Lab
from row import Row
from session import Unavailable
from together import Outcomes, Run

_SECONDS = 30
"""The limit for the faults of one way. Most ways take a few; those that create a context for each fault take longer."""
_SLACK_MIB = "8"
"""The driver's granules may change the held memory by so much."""
_SWEPT = re.compile(r"^\w+, (its own|others): (?P<reached>\d+) of (?P<all>\d+) faults, \d+ wrong$", re.M)
_TRIED = re.compile(r"^(?P<reached>\d+) faults, \d+ wrong$", re.M)
_START = "the_start"
"""The way that needs a process for each fault."""


def environment(lab: Lab, folder: Path) -> dict[str, str]:
    """Returns variables with which a program finds the driver of tests/between, and that driver the real one, under another
    name. Raises Unavailable."""
    between = lab.built("tests/between/libcuda.so.1")
    folder.mkdir(parents=True, exist_ok=True)
    for link, name in (("libcuda-behind.so.1", "libcuda.so.1"), ("libnvidia-ml.so.1", "libnvidia-ml.so.1")):
        path = folder / link
        path.unlink(missing_ok=True)
        path.symlink_to(_where_loaded(name))
    there = lab.environment(None).get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": ":".join([str(between.parent), str(folder), *([there] if there else [])])}


def _where_loaded(name: str) -> Path:
    ctypes.CDLL(name)
    stem = name.split(".so")[0] + ".so"
    for line in Path("/proc/self/maps").read_text().splitlines():
        file = Path(line.split(maxsplit=5)[-1])
        if file.name.startswith(stem):
            return file
    raise Unavailable(f"{name} is not in /proc/self/maps")


def plan(lab: Lab, name: str) -> list[Run]:
    faults, cases = lab.built("tests/driver_faults"), lab.built("tests/driver_cases")
    folder = lab.folder_of(name)
    job = lab.job(name, None)
    env = lab.capped_environment(job, environment(lab, folder) | {"CURB_FAULT_SLACK": _SLACK_MIB})
    listed = subprocess.run([faults, "--list"], env=env, capture_output=True, text=True, timeout=60, check=True)
    ways = [way for way in listed.stdout.split() if way != _START]
    if not ways:
        raise Unavailable("driver_faults lists no ways")
    return [
        Run("cases", [str(cases)], env, folder, expected_s=15),
        Run(_START, [str(faults), _START], env, folder, limit_s=300, expected_s=90),
        *(Run(way, [str(faults), "--sweep", way, str(_SECONDS)], env, folder, 3.0 * _SECONDS, 45) for way in ways),
    ]


def judge(row: Row, outcomes: Outcomes) -> None:
    reached = planned = 0
    partly, not_repeated = [], 0
    for name, one in outcomes.items():
        if one.status != 0:
            row.expect(False, f"{name}: {one.ending}\n    | " + "\n    | ".join(one.stdout.splitlines()[:12]))
        for swept in (*_SWEPT.finditer(one.stdout), *_TRIED.finditer(one.stdout)):
            got = int(swept["reached"])
            every = int(swept.groupdict().get("all", got))
            reached, planned = reached + got, planned + every
            if got < 0.9 * every:
                partly.append(f"{name} {got} of {every}")
        not_repeated += one.stdout.count(", but not in a process of its own")
    row.goes_on = not row.wrong
    said = {name: one.stdout[-2000:] for name, one in outcomes.items()}
    row.details |= {"faults": reached, "planned": planned, "said": said}
    row.expect(reached > 0, "no fault was reached")
    ways = len(outcomes) - 1
    row.add_note(f"{reached:,} faults of {planned:,} in {ways} ways of using memory; books and device compared after each")
    if partly:
        row.add_note("not all reached: " + ", ".join(partly))
    if not_repeated:
        row.add_note(f"{not_repeated} more failed after other faults in one process, but not in a process of their own")
