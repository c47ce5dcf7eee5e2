"""What TensorFlow's own remedies give back, and what curb gives back: each script of programs/tensorflow_remedies.py bare, under
a cap, and under a cap with `"steer": true`.

By default TensorFlow takes all the memory that it is shown. So the scripts under a cap run side by side, and after them the
bare ones one by one. A script that fails or hangs costs the others nothing.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import report
from lab import Case, Lab
from nvml import Device
from releasing import release
from row import Row
from session import Job, ProgramFailed, Session
from watch import MIB

_CAP_MIB = 8192
_POLICIES: dict[str, dict[str, Any] | None] = {"bare": None, "capped": {}, "steered": {"frameworks": {"steer": True}}}
_STEPS = 56
_TIMED = {"fit": 800, "function": 2400}
"""Steps; each some 8 s on an H200."""
_ROUNDS = 4
_AT_ONCE, _AHEAD = 8, 4
"""So many scripts use the GPU at the same time, and so many more import TensorFlow meanwhile."""
_LIMIT_S = 120.0
"""For each part of a script. TensorFlow waits 10 s before it reports that it is out of memory."""
_OOM = "tensorflow.ResourceExhaustedError"

_SCRIPTS = {
    "default": "nothing",
    "growth": "`set_memory_growth`; model deleted",
    "limit": "`memory_limit=2048`; model deleted",
    "fit": "Keras `fit`; model deleted",
    "function": "`tf.function` loop; model deleted",
    "clear": "`del`, `clear_session`, `gc.collect`",
    "sessions": "`compat.v1`: session closed, graph reset",
    "oom": "filled until out of memory; all deleted",
    "two": "nothing; then a larger model",
    "loader": "`tf.data` with prefetch; model and data deleted",
}
_LEAVE_ROOM = ("growth", "limit")
"""Bare they take little, and need not be alone."""

@dataclass
class Run:
    """NVML's figures for the process, in MiB. None: the run did not come so far, or has no curb that could be asked."""

    trained: float | None = None
    after: float | None = None
    released: float | None = None
    again: float | None = None
    released_again: float | None = None
    released_ms: float | None = None
    version: str = ""
    error: str | None = None
    in_use: list[float | str] = field(default_factory=list)
    """MiB by TensorFlow's own account: trained, after the remedy, trained again."""
    ps: list[float | None] = field(default_factory=list)
    """MiB by `curb ps`, at the same moments."""
    losses: list[float] = field(default_factory=list)
    log: str | None = None
    seconds: float = 0.0
    failed: str = ""
    session: Session | None = None

    def record(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("losses", "session")}


class Remedies:
    """All runs of the cases that were chosen. The first case that begins starts them."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, Future[Run]]] = {}

    def case(self, script: str) -> Case:
        def case(lab: Lab, row: Row) -> None:
            environment = lab.tensorflow()
            if not self._runs:
                self._start(lab, environment)
            runs = {kind: run.result() for kind, run in self._runs[script].items()}
            row.details["runs"] = {kind: run.record() for kind, run in runs.items()}
            _judge(row, script, runs)

        return case

    def table(self, lab: Lab, row: Row) -> None:
        lab.tensorflow()
        row.verdict = "info"
        found = {script: {kind: run.result() for kind, run in runs.items()} for script, runs in self._runs.items()}
        row.section = _tables(found)
        versions = {run.version for runs in found.values() for run in runs.values() if run.version}
        row.add_note(f"TensorFlow {', '.join(sorted(versions))}")

    def speed(self, lab: Lab, row: Row) -> None:
        """One after the other, and alone: nothing else may use the machine."""
        environment = lab.tensorflow()
        wait([run for runs in self._runs.values() for run in runs.values()])
        _speed(lab, row, environment)

    def _start(self, lab: Lab, environment: dict[str, str]) -> None:
        beside, alone = threading.Semaphore(_AT_ONCE), threading.Semaphore(1)
        side_by_side = ThreadPoolExecutor(_AT_ONCE + _AHEAD)
        one_by_one = ThreadPoolExecutor(2)
        chosen = [script for script in _SCRIPTS if _name(script) in lab.names]
        self._runs = {script: {} for script in chosen}
        first: list[Future[Run]] = []
        for kind in ("capped", "steered", "bare"):
            for script in chosen:
                arguments = (lab, environment, script, kind)
                if kind != "bare" or script in _LEAVE_ROOM:
                    self._runs[script][kind] = side_by_side.submit(_run, *arguments, beside, [])
                    first.append(self._runs[script][kind])
                else:
                    self._runs[script][kind] = one_by_one.submit(_run, *arguments, alone, first)
        side_by_side.shutdown(wait=False)
        one_by_one.shutdown(wait=False)


def _run(
    lab: Lab, environment: dict[str, str], script: str, kind: str, turns: threading.Semaphore, first: list[Future[Run]]
) -> Run:
    """Imports TensorFlow at once, and goes on when those in `first` have ended and it is its turn."""
    run = Run()
    start = time.monotonic()
    took_turn = False
    try:
        session, job = _started(lab, environment, script, kind, _STEPS)
        run.version = _imported(session)
        wait(first)
        took_turn = turns.acquire()
        start = time.monotonic()
        with session:
            run.session = session
            _go_through(lab, session, job, run)
    except Exception as error:  # of one run alone: it stands in its row
        run.failed = str(error) if isinstance(error, ProgramFailed) else f"{type(error).__name__}: {error}"
    finally:
        if took_turn:
            turns.release()
    run.seconds = round(time.monotonic() - start, 1)
    figures = ", ".join(f"{name} {value}" for name, value in run.record().items() if value not in (None, "", [], 0))
    print(f"    {script}, {kind}: {figures}", flush=True)
    return run


def _started(
    lab: Lab, environment: dict[str, str], script: str, kind: str, steps: int, number: int = 0
) -> tuple[Session, Job | None]:
    argv = lab.python("tensorflow_remedies.py", script, str(steps))
    name = f"tensorflow {script} {kind} {steps} {number}"
    devices = [Device(lab.device.index)]  # its own: a device's list of processes is read by one thread at a time
    policy = _POLICIES[kind]
    if policy is None:
        return Session(argv, lab.environment(environment), devices, lab.folder_of(name)), None
    job = lab.job(name, f"{_CAP_MIB}MiB", **policy)
    return Session(argv, lab.capped_environment(job, environment), devices, job.folder), job


def _imported(session: Session) -> str:
    """TensorFlow's version."""
    try:
        return str(session.expect("imported", _LIMIT_S)["version"])
    except ProgramFailed:
        with session:  # ends it
            raise


def _go_through(lab: Lab, session: Session, job: Job | None, run: Run) -> None:
    session.tell("train")
    trained = session.expect("trained", _LIMIT_S)
    run.error, run.losses = trained["error"], trained["losses"]
    run.trained = _measured(lab, session, job, run, trained)
    session.tell("remedy")
    run.after = _measured(lab, session, job, run, session.expect("after", _LIMIT_S))
    if job:
        back = release(session, job.log)
        run.released, run.released_ms, run.log = _settled_mib(session), back.ms, back.log_line
    session.tell("again")
    again = session.expect("again", _LIMIT_S)
    run.losses = run.losses + again["losses"]
    run.again = _measured(lab, session, job, run, again)
    if job:
        release(session, job.log)
        run.released_again = _settled_mib(session)
    session.end()


def _measured(lab: Lab, session: Session, job: Job | None, run: Run, said: dict[str, Any]) -> float:
    """NVML's figure, beside which TensorFlow's own and curb's are kept."""
    held = _settled_mib(session)
    in_use = said["in_use"]
    run.in_use.append(round(in_use / MIB, 1) if isinstance(in_use, int) else in_use)
    run.ps.append(_ps_mib(lab, session.pid) if job else None)
    return held


def _settled_mib(session: Session) -> float:
    return round(session.watch.settle() / MIB, 1)


def _ps_mib(lab: Lab, pid: int) -> float | None:
    answer = json.loads(lab.curb("ps", "--json").stdout)
    for gpu in answer["gpus"]:
        for use in gpu["uses"]:
            if use["pid"] == pid and use["books"]:
                return round(use["books"]["held"] / MIB, 1)
    return None


# ---- what is right ----


def _judge(row: Row, script: str, runs: dict[str, Run]) -> None:
    for kind, run in runs.items():
        row.expect(not run.failed, f"{kind}: {run.failed}")
        if run.session and kind != "bare":
            row.watched(run.session.watch, _CAP_MIB)
        if run.failed:
            continue
        row.expect(kind == "bare" or run.log is not None, f"{kind}: curb logged no release after SIGUSR1")
        row.expect(run.error == (_OOM if script == "oom" else None), f"{kind}: the error was {run.error}")
    row.goes_on = not any(run.failed for run in runs.values())
    whole = [run for run in runs.values() if not run.failed]
    same = bool(whole) and all(run.losses == whole[0].losses for run in whole)
    row.expect(same, "the losses differ")
    if whole:
        losses = whole[0].losses
        row.expect(losses[-1] < losses[0], f"the loss did not fall ({losses[0]:.4g} -> {losses[-1]:.4g}): nothing was trained")
        row.error = ", ".join(sorted({run.error for run in whole if run.error}))
    steered = runs["steered"]
    if steered.after is not None and steered.released is not None:
        row.released_mib, row.released_ms = round(steered.after - steered.released, 1), steered.released_ms
    row.details["log"] = steered.log
    held = "; ".join(f"{kind} {_way(run)}" for kind, run in runs.items())
    row.add_note(f"MiB held trained, after the remedy, after SIGUSR1: {held}; losses {'identical' if same else 'DIFFERENT'}")


def _speed(lab: Lab, row: Row, environment: dict[str, str]) -> None:
    rounds, kinds = 1 if lab.quick else _ROUNDS, list(_POLICIES)
    # Another one first in each round, so that a clock that drifts meets all.
    turns = [kinds[number % len(kinds) :] + kinds[: number % len(kinds)] for number in range(rounds)]
    order = [(script, kind, number) for number, turn in enumerate(turns) for script in _TIMED for kind in turn]
    found: dict[tuple[str, str], list[float]] = {(script, kind): [] for script in _TIMED for kind in _POLICIES}
    losses: dict[str, list[float]] = {}
    waiting = {one: _started(lab, environment, one[0], one[1], _TIMED[one[0]], one[2] + 1)[0] for one in order}
    try:
        for session in waiting.values():
            session.expect("imported", _LIMIT_S)
        for script, kind, number in order:
            session = waiting[script, kind, number]
            session.tell("train")
            trained = session.expect("trained", _LIMIT_S)
            with waiting.pop((script, kind, number)):  # ends it; until now NVML was not asked, which could cost it time
                pass
            found[script, kind].append(trained["steps_per_s"])
            row.expect(trained["losses"] == losses.setdefault(script, trained["losses"]), f"{script}, {kind}: the losses differ")
    finally:
        for session in waiting.values():
            with session:  # ends it
                pass
    row.goes_on = True
    row.details["steps_per_s"] = {f"{script}, {kind}": values for (script, kind), values in found.items()}
    rows = [("", "bare, steps/s", *(f"{kind}, ratio" for kind in _POLICIES if kind != "bare"))]
    for script in _TIMED:
        bare = found[script, "bare"]
        ratios = [_ratios(bare, found[script, kind]) for kind in _POLICIES if kind != "bare"]
        rows.append((_SCRIPTS[script].split(";")[0], f"{statistics.median(bare):.1f}", *ratios))
    row.section = report.markdown_table(rows)
    row.add_note(f"{rounds} runs of each; " + "; ".join(" | ".join(cells) for cells in rows[1:]))


def _ratios(bare: list[float], other: list[float]) -> str:
    ratios = [b / a for a, b in zip(bare, other, strict=True)]
    return f"{statistics.median(ratios):.3f} (pairs {min(ratios):.3f} to {max(ratios):.3f})"


# ---- the tables ----


def _tables(found: dict[str, dict[str, Run]]) -> list[str]:
    kinds = list(_POLICIES)
    held = [("the script, and what it does about memory", *kinds, "steered: trained again", "losses")]
    beside = [("", "", *(f"{figure}, {moment}" for moment in ("trained", "after") for figure in ("NVML", "TensorFlow", "`curb ps`")))]
    for script, runs in found.items():
        losses = [run.losses for run in runs.values() if not run.failed]
        same = "identical" if losses and all(one == losses[0] for one in losses) else "**different**"
        steered = runs["steered"]
        held.append((_SCRIPTS[script], *(_way(runs[kind]) for kind in kinds), _arrows(steered.again, steered.released_again), same))
        for kind in kinds:
            run = runs[kind]
            pairs = zip((run.trained, run.after), run.in_use, run.ps, strict=False)
            cells = [_mib(figure) for one in pairs for figure in one]
            beside.append((_SCRIPTS[script], kind, *cells, *[""] * (6 - len(cells))))
    return [
        f"MiB that NVML showed for the process: trained → after the remedy → after SIGUSR1. The cap is {_CAP_MIB:,} MiB.",
        "",
        *report.markdown_table(held),
        "",
        "TensorFlow's own account (`get_memory_info`, once the op BytesInUse) beside NVML's and `curb ps`, in MiB.",
        "",
        *report.markdown_table(beside),
    ]


def _way(run: Run) -> str:
    if run.failed:
        return f"failed: {run.failed.splitlines()[0]}"
    return _arrows(run.trained, run.after, run.released)


def _arrows(*figures: float | None) -> str:
    return " → ".join(_mib(figure) for figure in figures if figure is not None)


def _mib(figure: float | str | None) -> str:
    return "" if figure is None else f"{figure:,.0f}" if isinstance(figure, float) else str(figure).split(":", 1)[0]


def _name(script: str) -> str:
    return f"tensorflow: {script}"


_remedies = Remedies()
TENSORFLOW: dict[str, Case] = {
    **{_name(script): _remedies.case(script) for script in _SCRIPTS},
    "tensorflow: steps/s": _remedies.speed,
    "tensorflow: table": _remedies.table,
}
