#!/usr/bin/env python3
"""Runs the driver contract suite under a curb that has nothing to refuse, a process for each case: the driver must
behave the same, and curb's books must agree with the device's figure.

usage: under_curb.py DRIVER_CONTRACT LIBCURB DRIVER_FOLDER [naps]

With `naps` the policy has naps and turns, so curb makes large blocks by virtual memory management, and counts all calls.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# Cases that differ under curb by design: the beginnings of their names, and why.
BY_DESIGN = {
    "what a pool keeps, unused and seen complete,": "curb sees frees complete and trims before it passes a refusal on",
    "a refused launch of a graph keeps what it could take": "curb trims it before it passes the refusal on",
    "of a process that is out some calls fail,": "curb makes such calls wait, once curb suspend has closed its gate",
    "a module for which the device has no room is refused": "curb keeps room for the first kernels, in which it fits",
}

# The same, where curb makes large blocks.
BY_DESIGN_WITH_NAPS = {
    "cuMemFreeAsync accepts a plain block,": "such a free waits for its stream, and the memory is back at once",
    "cuMemFree waits for all work, but": "such a free synchronises the context, so pools see frees complete and give them back",
}

_BOOKS = re.compile(r"^books: (?P<off>[+-][\d.]+) MiB of (?P<device>\d+) MiB: ", re.MULTILINE)
# The folder of the build, cut from reports: they are kept, and read on other machines.
_FOLDER = re.compile(r"(?<=\s)/\S*/tests/contract/")


@dataclass(frozen=True)
class Case:
    name: str
    said: list[str]
    """The last lines of a case that fails; empty if it holds."""
    off_mib: float | None
    """The largest difference between books and device. None if there was nothing to compare."""

    @property
    def holds(self) -> bool:
        return not self.said

    @property
    def by_design(self) -> bool:
        return self.name.startswith(tuple(BY_DESIGN))

    @property
    def by_design_with_naps(self) -> bool:
        return self.by_design or self.name.startswith(tuple(BY_DESIGN_WITH_NAPS))


def policy(log: Path, naps: bool = False) -> str:
    """A policy with a cap that nothing reaches, the device's own figures, and a signal that only logs the books."""
    return json.dumps(
        {
            **({"suspend": {"idle": "1h", "turn": "1h"}} if naps else {}),
            "version": 1,
            "gpu": {"*": {"cap": "100%", "report": "device"}},
            "release": {"steps": []},
            "log": {"level": "info", "file": str(log)},
        }
    )


def names(suite: Path, env: dict[str, str] | None = None, tags: str = "") -> list[str]:
    """Returns the names of the cases, or of those that `tags` selects in Catch2's syntax."""
    for option in (["--list-tests", "--verbosity", "quiet"], ["--list-test-names-only"]):  # Catch2 3, and 2
        command = [suite, *option, *([tags] if tags else [])]
        listed = subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout
        if not re.match(r"(All available|Matching) test cases:", listed):
            break
    return [line.strip() for line in listed.splitlines() if line.strip()]


def run(suite: Path, cases: Iterable[str], env: dict[str, str] | None) -> list[Case]:
    """Runs each case in a process of its own, so that a crash fails that case alone."""
    return [_run(suite, name, env) for name in cases]


def chosen(name: str) -> str:
    """Returns the argument that selects a case. A bare comma would end the name for Catch2."""
    return re.sub(r"([,\[\]\\])", r"\\\1", name)


def _run(suite: Path, name: str, env: dict[str, str] | None) -> Case:
    command = [str(suite), chosen(name)]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return Case(name, ["did not end within 30 s"], None)
    books = _BOOKS.search(done.stderr)
    output = _FOLDER.sub("tests/contract/", done.stdout.strip())
    said = [] if done.returncode == 0 else output.splitlines()[-30:] or [f"status {done.returncode}"]
    return Case(name, said, float(books["off"]) if books else None)


def furthest(cases: Iterable[Case]) -> str:
    """Returns a line on the case in which books and device differed most."""
    compared = [case for case in cases if case.off_mib is not None]
    if not compared:
        return "there are no books to compare with the device"
    worst = max(compared, key=lambda case: abs(case.off_mib or 0.0))
    return f"books and device differ by {worst.off_mib:+.1f} MiB at the most in {len(compared)} cases ('{worst.name}')"


def main() -> int:
    suite, library, driver = (Path(argument).resolve() for argument in sys.argv[1:4])
    naps = sys.argv[4:] == ["naps"]
    with tempfile.TemporaryDirectory(prefix="curb-contract-") as folder:
        log, file = Path(folder) / "curb.log", Path(folder) / "job.json"
        file.write_text(policy(log, naps))
        bare = os.environ | {"LD_LIBRARY_PATH": str(driver)}
        curb = {"LD_PRELOAD": str(library), "CURB_POLICY": str(file), "CONTRACT_BOOKS": str(log)}
        cases = run(suite, names(suite, bare), bare | curb)
        there = log.exists()
    meant = {case.name for case in cases if (case.by_design_with_naps if naps else case.by_design)}
    for case in cases:
        off = "" if case.off_mib is None else f"{case.off_mib:+6.1f} MiB"
        print(f"{'holds' if case.holds else 'differs':8}{off:12}{case.name}", *([] if case.name in meant else case.said), sep="\n    ")
    differ = [case for case in cases if not case.holds]
    wrong = [case for case in differ if case.name not in meant]
    print(furthest(cases))
    listed = BY_DESIGN | (BY_DESIGN_WITH_NAPS if naps else {})
    unused = [beginning for beginning in listed if not any(case.name.startswith(beginning) for case in cases)]
    for beginning in unused:
        print(f"no case begins with '{beginning}'")
    print(f"{len(cases) - len(differ)} of {len(cases)} cases hold under curb, {len(differ) - len(wrong)} differ by design")
    if not there:
        print("curb wrote no log: it was not there")
    return 1 if wrong or unused or not cases or not there else 0


if __name__ == "__main__":
    sys.exit(main())
