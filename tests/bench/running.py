"""Runs groups cast by cast: starts their lanes, takes rounds of samples, and makes results from the samples of all casts. A lane
that fails does not stop the others; its rows have the reason.

A process can be fast or slow for its whole life, by the place of its memory. So each cast starts new processes.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gpu_tests import Device, ProgramFailed, shell_environment
from lane import Lane, Times
from measures import Group, LaneSpec, Row
from pairs import Figure
from subjects import BARE, CACHED, CURB, DIRECT, NAPS, STACKS, TRACE, TURNS, Subject

_PROGRAMS = Path(__file__).parent / "programs"
_ANSWER_S = 60
OWN = (BARE, CURB, CACHED, NAPS, TURNS, TRACE, STACKS)
NO_TIME = "no time was left"


@dataclass(frozen=True)
class Result:
    """One row of the table. If `figure` is None, `why` has the reason."""

    driver: str
    group: Group
    row: Row
    subject: str
    against: str
    figure: Figure | None
    why: str = ""
    notes: tuple[str, ...] = ()
    casts: tuple[float, ...] = ()
    """The median of each cast: of the ratio, or of the time if the row has no comparison."""
    lost: bool = False
    """True if a cast failed after another one had succeeded."""

    @property
    def met(self) -> bool | None:
        """Returns true if the figure meets its target. None: it has no target on this driver."""
        target = self.row.target
        if target is None or self.figure is None or self.driver not in target.drivers:
            return None
        return target.met(self.figure)


@dataclass
class Setting:
    """The build, folder, subjects, device and limits of a run of the bench."""

    build: Path
    folder: Path
    subjects: dict[str, Subject]
    device: Device | None
    thrust: Path | None = None
    why_no_thrust: str = "nvcc is not installed"
    quick: bool = False
    casts: int = 1
    deadline: float = math.inf

    def environment(self, driver: str) -> dict[str, str]:
        """Returns the variables of every lane: they select the driver, and the bench's folder for curb's sockets."""
        env = shell_environment() | {"PYTHONUNBUFFERED": "1", "XDG_RUNTIME_DIR": str(self.folder)}
        if driver == "gpu":
            assert self.device
            return env | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(self.device.index)}
        libraries = self.build / ("sim" if driver == "sim" else "tests/noop")
        before = [os.environ["LD_LIBRARY_PATH"]] if os.environ.get("LD_LIBRARY_PATH") else []
        return env | {"LD_LIBRARY_PATH": os.pathsep.join([str(libraries), *before])}

    @property
    def switch(self) -> Path:
        return self.build / "tests" / "libbench_switch.so"

    def left_s(self) -> float:
        return self.deadline - time.monotonic()


@dataclass
class _Running:
    lane: Lane
    samples: list[Times] = field(default_factory=list)
    count: int = 0
    losses: list[float] = field(default_factory=list)


class Run:
    """A group on a driver. For each cast the caller calls start, wait, measure and close."""

    def __init__(self, group: Group, driver: str, setting: Setting) -> None:
        self.group = group
        self.driver = driver
        self.casts = setting.casts if group.recast else 1
        self._setting = setting
        self._lanes: dict[str, _Running] = {}
        self._done: list[dict[str, _Running]] = []
        """The lanes of each cast that did not fail. They took their samples in the same rounds."""
        self._why: dict[str, str] = {}
        """Why a lane failed, by its name."""

    def start(self) -> None:
        if self._setting.left_s() <= 0:
            return
        for name, spec in self.group.lanes.items():
            subject = self._setting.subjects[spec.subject]
            if self.driver not in subject.drivers or name in self._why:
                continue
            if subject.cannot:
                self._why[name] = subject.cannot
                continue
            try:
                self._lanes[name] = _Running(self._lane(name, spec, subject))
            except ProgramFailed as failure:
                self._why[name] = str(failure)

    def wait(self) -> None:
        """Waits until every lane is ready or has failed."""
        limit = min(self.group.start_s, max(self._setting.left_s(), 1))
        begun = time.monotonic()
        for name in list(self._lanes):
            # They started together, so one limit counts for all.
            self._try(name, lambda one: one.lane.ready(max(limit - (time.monotonic() - begun), 1)))

    def measure(self) -> None:
        group, setting, cast = self.group, self._setting, len(self._done)
        if setting.left_s() <= 0:
            return
        pairs = 7 if setting.quick else group.pairs
        rounds = max(pairs * (cast + 1) // self.casts - pairs * cast // self.casts, 1)
        stop = time.monotonic() + min((1.5 if setting.quick else group.limit_s) / self.casts, setting.left_s())
        for name in list(self._lanes):
            self._try(name, self._calibrate)
        for number in range(rounds):
            if number > 0 and time.monotonic() > stop:
                break
            for name in _from(number, list(self._lanes)):
                self._try(name, _sample)
            time.sleep(group.pause_s)
        if group.program:
            for name in list(self._lanes):
                self._try(name, _finish)
        self._done.append(dict(self._lanes))

    def close(self) -> None:
        # In parallel, because frameworks end slowly.
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda one: one.lane.close(), self._lanes.values()))
        self._lanes.clear()

    def results(self) -> list[Result]:
        def subject(row: Row) -> Subject:
            return self._setting.subjects[self.group.lanes[row.lane].subject]

        return [self._result(row) for row in self.group.rows if self.driver in subject(row).drivers]

    def broken(self, why: str) -> None:
        self._why = dict.fromkeys(self.group.lanes, why)

    def _result(self, row: Row) -> Result:
        subject = self.group.lanes[row.lane].subject
        failed = self._why.get(row.lane, "")
        against, casts, notes = self._compared(row)
        if not casts:
            return Result(self.driver, self.group, row, subject, against, None, failed or NO_TIME)
        lost = failed not in ("", NO_TIME)
        if lost:
            notes.append(f"not in all casts: {failed}")
        values = [ns for here, _ in casts for ns in here]
        base = [ns for _, there in casts for ns in there]
        by_cast = tuple(_middle(Figure.of(here, there, self.group.rates)) for here, there in casts)
        return Result(
            self.driver, self.group, row, subject, against, Figure.of(values, base, self.group.rates), "",
            (*notes, *self._notes(row)), by_cast, lost,
        )  # fmt: skip

    def _compared(self, row: Row) -> tuple[str, list[tuple[list[float], list[float]]], list[str]]:
        """Returns the name of what the row is compared with, the times of both by cast, and remarks."""
        mine = [one.samples for (one,) in self._casts_of(row.lane)]
        notes: list[str] = []
        if row.within:
            missing = {times.no_direct for samples in mine for times in samples if times.direct_ns is None}
            if not missing:
                return DIRECT, [(_ns(samples), [times.direct_ns or 0.0 for times in samples]) for samples in mine], notes
            notes.append(f"not compared with the driver's own functions in its process: {missing.pop()}")
        alone: list[tuple[list[float], list[float]]] = [(_ns(samples), []) for samples in mine]
        if row.against is None:
            return "", alone, notes
        against = self.group.lanes[row.against].subject
        both = [(_ns(here.samples), _ns(there.samples)) for here, there in self._casts_of(row.lane, row.against)]
        if not both and row.against in self._why:
            notes.append(f"{against}: {self._why[row.against]}")
        return against, both or alone, notes

    def _casts_of(self, *names: str) -> list[list[_Running]]:
        """Returns these lanes, for each cast in which none of them failed."""
        return [[cast[name] for name in names] for cast in self._done if all(name in cast for name in names)]

    def _notes(self, row: Row) -> list[str]:
        notes = []
        if row.against:
            both = self._casts_of(row.lane, row.against)
            if losses := [(here.losses, there.losses) for here, there in both if here.losses]:
                notes.append(_losses_text(losses))
        if self.group.lanes[row.lane].subject in (TRACE, STACKS) and (dropped := self._dropped(row.lane)):
            notes.append(f"events were dropped {dropped} times")
        return notes

    def _dropped(self, name: str) -> int:
        dropped = 0
        for cast in range(self.casts):
            try:
                with (self._folder(name, cast) / "trace.json").open(errors="replace") as trace:
                    dropped += sum('"name":"dropped"' in line for line in trace)
            except OSError:
                pass
        return dropped

    def _calibrate(self, running: _Running) -> None:
        """Finds how many operations fill a sample, by samples of more and more operations."""
        if self.group.count is not None:
            running.count = self.group.count
            return
        wanted_ns = (1.0 if self._setting.quick else self.group.sample_ms) * 1e6
        count = 1
        while True:
            # The quickest of three, because threads that wake up late make a small sample slow.
            tries = 3 if count < 1000 else 1
            ns = max(min(running.lane.sample(count, _ANSWER_S).ns for _ in range(tries)), 0.1)
            fits = max(int(wanted_ns / ns), 1)
            if fits <= count * 2 or count >= self.group.most:
                break
            count = min(fits, count * 64, self.group.most)
        running.count = min(fits, self.group.most)

    def _try(self, name: str, step: Callable[[_Running], None]) -> None:
        """Makes one step of a lane. Closes the lane if it fails."""
        running = self._lanes[name]
        try:
            step(running)
        except ProgramFailed as failure:
            self._why[name] = str(failure) if self._setting.left_s() > 0 else NO_TIME
            running.lane.close()
            del self._lanes[name]

    def _folder(self, name: str, cast: int) -> Path:
        words = f"{self.driver} {self.group.name} {name} {cast + 1}"
        return self._setting.folder / "".join(c if c.isalnum() else "-" for c in words)

    def _lane(self, name: str, spec: LaneSpec, subject: Subject) -> Lane:
        folder = self._folder(name, len(self._done))
        preload = subject.preload(folder, self._setting.switch if spec.switch else None)
        # A probe that starts programs gives the preload to them, and is bare itself.
        starts = "PRELOAD" in spec.argv
        env = self._setting.environment(self.driver) | dict(spec.env) | ({} if starts else preload)
        return Lane(list(itertools.chain.from_iterable(self._words(word, preload) for word in spec.argv)), env, folder)

    def _words(self, word: str, preload: dict[str, str]) -> list[str]:
        build = self._setting.build
        if word == "PROBE":
            return [str(build / "tests" / "bench_probe")]
        if word == "PYTHON":
            return [sys.executable]
        if word == "PRELOAD":
            return [f"{name}={value}" for name, value in preload.items()]
        if word == "THRUST":
            if self._setting.thrust is None:
                raise ProgramFailed(self._setting.why_no_thrust)
            return [str(self._setting.thrust)]
        return [word.replace("PROGRAMS", str(_PROGRAMS))]


def _from(number: int, lanes: list[str]) -> list[str]:
    """Returns the lanes in the order of a round. Each round starts with another lane, because the first one finds the GPU idle."""
    first = number % max(len(lanes), 1)
    return lanes[first:] + lanes[:first]


def _sample(running: _Running) -> None:
    running.samples.append(running.lane.sample(running.count, _ANSWER_S))


def _finish(running: _Running) -> None:
    running.losses = running.lane.finish(_ANSWER_S)


def _ns(samples: Sequence[Times]) -> list[float]:
    return [times.ns for times in samples]


def _middle(figure: Figure) -> float:
    return figure.ratio.median if figure.ratio else figure.ns.median


def _losses_text(casts: Sequence[tuple[Sequence[float], Sequence[float]]]) -> str:
    """Compares the losses here and there, cast by cast."""
    number = sum(min(len(here), len(there)) for here, there in casts)
    off = [max((abs(a - b) / max(abs(b), 1e-30) for a, b in zip(here, there)), default=0.0) for here, there in casts]
    if not any(off):
        return f"{number} losses identical"
    some = f" in {sum(map(bool, off))} of {len(off)} casts" if len(off) > 1 else ""
    return f"{number} losses differ by {max(off):.1e} at the most{some}"


def measured(runs: Sequence[Run]) -> None:
    """Measures one cast of these groups. All lanes start at once. Then one group after the other takes its samples, while the
    other lanes sleep."""
    try:
        for run in runs:
            run.start()
        with ThreadPoolExecutor(len(runs)) as pool:
            list(pool.map(Run.wait, runs))
        for run in runs:
            try:
                run.measure()
            except Exception as error:  # an error in one group does not stop the others
                run.broken(f"{type(error).__name__}: {error}")
            run.close()
    finally:
        for run in runs:
            run.close()
