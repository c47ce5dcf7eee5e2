"""Runs groups: starts their lanes, takes rounds of samples, and turns them into results. What one lane cannot do is said
in its rows, and stops nothing else."""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from lane import Lane, LaneFailed
from measures import Group, LaneSpec, Row
from pairs import Figure
from subjects import BARE, CACHED, CURB, TRACE, Subject, clean_environment

sys.path.append(str(Path(__file__).resolve().parents[1] / "gpu"))
from nvml import Device, NvmlError  # noqa: E402

_PROGRAMS = Path(__file__).parent / "programs"
_NVML_EVERY_S = 0.02
_ANSWER_S = 60
_MIB = 2**20
OWN = (BARE, CURB, CACHED, TRACE)


@dataclass(frozen=True)
class Result:
    """One row of the table. `figure` None: `why` says why there is none."""

    driver: str
    group: Group
    row: Row
    subject: str
    against: str
    figure: Figure | None
    why: str = ""
    notes: tuple[str, ...] = ()

    @property
    def met(self) -> bool | None:
        """None: no target is meant here."""
        target = self.row.target
        if target is None or self.figure is None or self.driver not in target.drivers:
            return None
        return target.met(self.figure)


@dataclass
class Setting:
    """Where the bench runs."""

    build: Path
    folder: Path
    subjects: dict[str, Subject]
    device: Device | None
    thrust: Path | None
    why_no_thrust: str = "nvcc is not installed"
    quick: bool = False
    deadline: float = math.inf

    def environment(self, driver: str, folder: Path) -> dict[str, str]:
        """What every lane has: which driver it finds, and a folder for curb's sockets that is nobody else's."""
        env = clean_environment() | {"PYTHONUNBUFFERED": "1", "XDG_RUNTIME_DIR": str(self.folder)}
        if driver == "gpu":
            assert self.device
            return env | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(self.device.index)}
        libraries = self.build / ("sim" if driver == "sim" else "tests/noop")
        return env | {"LD_LIBRARY_PATH": os.pathsep.join([str(libraries), *_set("LD_LIBRARY_PATH")])}

    def left_s(self) -> float:
        return self.deadline - time.monotonic()


def _set(name: str) -> list[str]:
    return [os.environ[name]] if os.environ.get(name) else []


@dataclass
class _Running:
    lane: Lane
    samples: list[float] = field(default_factory=list)
    count: int = 0
    losses: list[float] = field(default_factory=list)


class Run:
    """A group on a driver. Start, wait until ready, measure, close."""

    def __init__(self, group: Group, driver: str, setting: Setting) -> None:
        self.group = group
        self.driver = driver
        self._setting = setting
        self._lanes: dict[str, _Running] = {}
        self._why: dict[str, str] = {}
        self._peaks: dict[int, int] = {}

    def start(self) -> None:
        for name, spec in self.group.lanes.items():
            subject = self._setting.subjects[spec.subject]
            if self.driver not in subject.drivers:
                continue
            if subject.cannot:
                self._why[name] = subject.cannot
                continue
            try:
                self._lanes[name] = _Running(self._lane(name, spec, subject))
            except LaneFailed as failure:
                self._why[name] = str(failure)

    def wait(self) -> None:
        """Until every lane is ready, or has failed to be."""
        limit = min(self.group.start_s, max(self._setting.left_s(), 1))
        begun = time.monotonic()
        for name in list(self._lanes):
            # All of them start at once, so that what one has taken is not given to the next.
            self._try(name, lambda one: one.lane.ready(max(limit - (time.monotonic() - begun), 1)))

    def measure(self) -> None:
        group, setting = self.group, self._setting
        stop = time.monotonic() + min(1.5 if setting.quick else group.limit_s, max(setting.left_s(), 0))
        for name in list(self._lanes):
            self._try(name, self._calibrate)
        with _Peaks(setting.device if group.program else None, self._peaks):
            for number in range(7 if setting.quick else group.pairs):
                if number > 0 and time.monotonic() > stop:
                    break
                for name in list(self._lanes):
                    self._try(name, _sample)
                time.sleep(group.pause_s)
        if group.program:
            for name in list(self._lanes):
                self._try(name, _finish)

    def close(self) -> None:
        while self._lanes:
            self._lanes.popitem()[1].lane.close()

    def results(self) -> list[Result]:
        there = [row for row in self.group.rows if row.lane in self._lanes or row.lane in self._why]
        return [self._result(row) for row in there]

    def broken(self, why: str) -> list[Result]:
        self._why = dict.fromkeys(self.group.lanes, why)
        return self.results()

    def _result(self, row: Row) -> Result:
        lanes = self.group.lanes
        subject = lanes[row.lane].subject
        against = lanes[row.against].subject if row.against else ""

        def result(figure: Figure | None, why: str = "", notes: Sequence[str] = ()) -> Result:
            return Result(self.driver, self.group, row, subject, against, figure, why, tuple(notes))

        if row.lane in self._why:
            return result(None, self._why[row.lane])
        values = self._lanes[row.lane].samples
        if not values:
            return result(None, "no time was left")
        base = None
        notes = []
        if row.against and row.against in self._why:
            notes.append(f"{against}: {self._why[row.against]}")
        elif row.against:
            base = self._lanes[row.against].samples
        return result(Figure.of(values, base, self.group.rates), "", [*notes, *self._notes(row)])

    def _notes(self, row: Row) -> list[str]:
        notes = []
        if row.against in self._lanes and (here := self._lanes[row.lane].losses):
            notes.append(_compared(here, self._lanes[row.against].losses))
        if peak := self._peak(row.lane):
            there = self._peak(row.against)
            notes.append(f"peak held {peak:,.0f} MiB" + (f", {there:,.0f} by {row.against}" if there else ""))
        if self.group.lanes[row.lane].subject == TRACE and (dropped := self._dropped(row.lane)):
            notes.append(f"events were dropped {dropped} times")
        return notes

    def _peak(self, name: str | None) -> float | None:
        """In MiB."""
        running = self._lanes.get(name or "")
        peak = running and self._peaks.get(running.lane.pid)
        return peak / _MIB if peak else None

    def _dropped(self, name: str) -> int:
        try:
            with (self._folder(name) / "trace.json").open(errors="replace") as trace:
                return sum('"name":"dropped"' in line for line in trace)
        except OSError:
            return 0

    def _calibrate(self, running: _Running) -> None:
        """As many operations as fill a sample: tried with more and more of them."""
        if self.group.count is not None:
            running.count = self.group.count
            return
        wanted_ns = (1.0 if self._setting.quick else self.group.sample_ms) * 1e6
        count = 1
        while True:
            # The quickest of three, for threads that wake late are not what operations take.
            tries = 3 if count < 1000 else 1
            ns = max(min(running.lane.sample(count, _ANSWER_S) for _ in range(tries)), 0.1)
            fits = max(int(wanted_ns / ns), 1)
            if fits <= count * 2 or count >= self.group.most:
                break
            count = min(fits, count * 64, self.group.most)
        running.count = min(fits, self.group.most)

    def _try(self, name: str, step: Callable[[_Running], None]) -> None:
        """One step of a lane. One that fails is over, with its reason; the others go on."""
        running = self._lanes[name]
        try:
            step(running)
        except LaneFailed as failure:
            self._why[name] = str(failure)
            running.lane.close()
            del self._lanes[name]

    def _folder(self, name: str) -> Path:
        words = f"{self.driver} {self.group.name} {name}"
        return self._setting.folder / "".join(c if c.isalnum() else "-" for c in words)

    def _lane(self, name: str, spec: LaneSpec, subject: Subject) -> Lane:
        folder = self._folder(name)
        preload = subject.preload(folder)
        # Programs that are started get the preload; the process that starts and times them is bare.
        starts = "PRELOAD" in spec.argv
        env = self._setting.environment(self.driver, folder) | dict(spec.env) | ({} if starts else preload)
        return Lane(list(itertools.chain.from_iterable(self._words(word, preload) for word in spec.argv)), env, folder)

    def _words(self, word: str, preload: dict[str, str]) -> list[str]:
        build = self._setting.build
        if word == "PROBE":
            return [str(build / "tests" / "bench_probe")]
        if word == "PYTHON":
            return [sys.executable]
        if word == "CURB":
            return [str(build / "bin" / "curb")]
        if word == "PRELOAD":
            return [f"{name}={value}" for name, value in preload.items()]
        if word == "THRUST":
            if self._setting.thrust is None:
                raise LaneFailed(self._setting.why_no_thrust)
            return [str(self._setting.thrust)]
        return [word.replace("PROGRAMS", str(_PROGRAMS))]


def _sample(running: _Running) -> None:
    running.samples.append(running.lane.sample(running.count, _ANSWER_S))


def _finish(running: _Running) -> None:
    running.losses = running.lane.finish(_ANSWER_S)["losses"]


class _Peaks:
    """The most that NVML shows for each process, while it is entered."""

    def __init__(self, device: Device | None, peaks: dict[int, int]) -> None:
        self._device = device
        self._peaks = peaks
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> None:
        if self._device:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._device:
            self._thread.join()

    def _sample(self) -> None:
        assert self._device
        while not self._stop.wait(_NVML_EVERY_S):
            try:
                held = self._device.held()
            except NvmlError:
                continue
            for pid, used in held.items():
                self._peaks[pid] = max(self._peaks.get(pid, 0), used)


def _compared(here: Sequence[float], there: Sequence[float]) -> str:
    number = min(len(here), len(there))
    off = max((abs(a - b) / max(abs(b), 1e-30) for a, b in zip(here, there)), default=0.0)
    if off == 0:
        return f"{number} losses identical"
    return f"{number} losses differ by {off:.1e} at the most"


def measured(runs: Sequence[Run]) -> list[Result]:
    """The results of groups whose lanes are started at once, so that they make themselves ready side by side. Then one
    group after the other is measured, and the rest sleep."""
    try:
        for run in runs:
            run.start()
        with ThreadPoolExecutor(len(runs)) as pool:
            list(pool.map(Run.wait, runs))
        results = []
        for run in runs:
            try:
                run.measure()
                results += run.results()
            except Exception as error:  # a mistake in one group must not cost the others' results
                results += run.broken(f"{type(error).__name__}: {error}")
            run.close()
        return results
    finally:
        for run in runs:
            run.close()
