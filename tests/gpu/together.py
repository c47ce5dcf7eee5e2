"""Cases whose programs run at the same time. They are judged only by their output and their exit status, and spend most of
their time in Python's imports and in creating contexts.

The first case starts the runs of all selected cases. Each case then waits for its own runs. A run that takes too long is
killed with its descendants.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from lab import Case, Lab
from row import Row
from session import Event, Job, Unavailable, end_all, ending, event_of

BARE = "bare"
ROOM = "32GiB"
"""A cap far above what any run needs."""
_TAIL_LINES = 8
_FREE_CORES = 2  # for the driver's threads and the test itself


@dataclass(frozen=True)
class Run:
    name: str
    """Unique in its case."""
    argv: list[str]
    env: dict[str, str]
    folder: Path
    limit_s: float = 90.0
    expected_s: float = 20.0
    """The longest runs start first."""
    job: Job | None = None
    """Its policy and log. None: it runs without curb."""


@dataclass
class Outcome:
    run: Run
    status: int | str = "hangs"
    seconds: float = 0.0
    stdout: str = ""
    stderr: str = ""
    events: list[Event] = field(default_factory=list)
    """The events in its stdout."""

    @property
    def under_curb(self) -> bool:
        """True if curb was active: it opens its log at the first cuInit."""
        return self.run.job is not None and self.run.job.log_file.exists()

    @property
    def ending(self) -> str:
        """Its ending, with the last lines of its stderr."""
        ended = f"ended with {ending(self.status)}" if isinstance(self.status, int) else f"hung for {self.run.limit_s:g} s"
        return "\n    | ".join([ended, *(line[:300] for line in self.stderr.splitlines()[-_TAIL_LINES:])])


Outcomes = dict[str, Outcome]
Plan = Callable[[Lab, str], list[Run]]
"""Returns the runs of the case of that name. Raises Unavailable."""
Judge = Callable[[Row, Outcomes], None]


class Together:
    """The runs of all cases that it has made."""

    def __init__(self) -> None:
        self._plans: dict[str, Plan] = {}
        self._planned: dict[str, list[Future[Outcome]] | Unavailable] | None = None

    def case(self, name: str, plan: Plan, judge: Judge) -> Case:
        """Makes a case that waits for the runs of `plan` and then judges their outcomes."""
        self._plans[name] = plan

        def case(lab: Lab, row: Row) -> None:
            if self._planned is None:
                self._planned = self._start_all(lab)
            planned = self._planned[name]
            if isinstance(planned, Unavailable):
                raise planned
            outcomes = [future.result() for future in planned]
            row.details = {"seconds": {one.run.name: round(one.seconds, 1) for one in outcomes}}
            judge(row, {one.run.name: one for one in outcomes})

        return case

    def _start_all(self, lab: Lab) -> dict[str, list[Future[Outcome]] | Unavailable]:
        runs: list[tuple[str, Run]] = []
        planned: dict[str, list[Future[Outcome]] | Unavailable] = {}
        for name, plan in self._plans.items():
            if name not in lab.names:
                continue
            planned[name] = []
            try:
                runs += [(name, run) for run in plan(lab, name)]
            except Unavailable as why:
                planned[name] = why
        cores = len(os.sched_getaffinity(0))
        pool = ThreadPoolExecutor(max(2, cores - _FREE_CORES), thread_name_prefix="together")
        for name, run in sorted(runs, key=lambda one: -one[1].expected_s):
            futures = planned[name]
            assert isinstance(futures, list)
            futures.append(pool.submit(_outcome, run))
        pool.shutdown(wait=False)
        return planned


def _outcome(run: Run) -> Outcome:
    run.folder.mkdir(parents=True, exist_ok=True)
    files = [run.folder / f"{run.name}.stdout.txt", run.folder / f"{run.name}.stderr.txt"]
    outcome = Outcome(run)
    start = time.monotonic()
    with files[0].open("wb") as stdout, files[1].open("wb") as stderr:
        process = subprocess.Popen(
            run.argv, env=run.env, cwd=run.folder, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
        )
        try:
            outcome.status = process.wait(run.limit_s)
        except subprocess.TimeoutExpired:
            pass  # the status stays "hangs"
        end_all(process)
    outcome.seconds = time.monotonic() - start
    outcome.stdout, outcome.stderr = (file.read_text(errors="replace") for file in files)
    outcome.events = [event for line in outcome.stdout.splitlines() if (event := event_of(line))]
    return outcome


def same_as_bare(row: Row, bare: Outcome, outcomes: Outcomes) -> None:
    """Each outcome has the same events and exit status as the bare one. curb was active, and printed nothing on stderr."""
    for name, one in outcomes.items():
        row.expect(one.status == bare.status, f"{name}: {one.ending}")
        row.expect(one.events == bare.events, f"{name}: {first_difference(bare.events, one.events)}")
        row.expect(one.under_curb, f"{name}: curb was not active: it wrote no log")
        ours = [line for line in one.stderr.splitlines() if line.startswith(("curb", "[curb"))]
        row.expect(not ours, f"{name}: curb printed {len(ours)} lines on stderr: {' | '.join(ours[:3])}")


def first_difference(bare: list[Event], under_curb: list[Event]) -> str:
    for number, (one, other) in enumerate(zip(bare, under_curb, strict=False)):
        if one != other:
            different = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
            shown = [json.dumps({key: event.get(key) for key in different})[:300] for event in (one, other)]
            return f"event {number + 1} ('{one['event']}'): {shown[1]} under curb, {shown[0]} without"
    return f"{len(under_curb)} events under curb, {len(bare)} without"
