"""The memory that TensorFlow's own remedies return, and that curb returns. Runs each script of
programs/training/tensorflow_remedies.py bare, under a cap, and under a cap with `"steer": true`.

By default TensorFlow takes all the memory that it sees. So first the runs under a cap share the GPU, then the bare runs follow
one by one. A failing script does not affect the others.
"""

from __future__ import annotations

import json
import statistics
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import report
from cases.frameworks.training import judge_losses
from lab import STEERED, Case, Lab
from measuring.watch import MIB
from releasing import release
from row import Row
from session import Event, Job, ProgramFailed, Session

_CAP_MIB = 8192
_POLICIES: dict[str, dict[str, Any] | None] = {"bare": None, "capped": {}, "steered": STEERED}
_STEPS = 56
_TIMED = {"fit": 800, "function": 2400}
"""Steps, which take some 8 s on an H200."""
_ROUNDS = 4
_AT_ONCE = 8
_LIMIT_S = 120.0
"""For each event of a script. TensorFlow waits 10 s before it reports an out-of-memory error."""
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
_MOMENTS = ("trained", "after", "released", "again", "released again")


@dataclass
class Run:
    """The results of one script under one policy. `held`, `in_use`, `ps`: MiB by moment, from NVML, TensorFlow and `curb ps`."""

    held: dict[str, float] = field(default_factory=dict)
    in_use: dict[str, float | str] = field(default_factory=dict)
    ps: dict[str, float | None] = field(default_factory=dict)
    released_ms: float | None = None
    version: str = ""
    error: str | None = None
    losses: list[float] = field(default_factory=list)
    log: str | None = None
    failed: str = ""
    session: Session | None = None

    def record(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("losses", "session")}

    def way(self, *moments: str) -> str:
        """Returns the held MiB as `141,446 → 141,446 → 712`, or the failure."""
        if self.failed:
            return f"failed: {self.failed.splitlines()[0]}"
        return " → ".join(f"{self.held[moment]:,.0f}" for moment in moments if moment in self.held)


class Remedies:
    """The runs of all selected cases. The first case starts them."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, Future[Run]]] = {}

    def case(self, script: str) -> Case:
        def case(lab: Lab, row: Row) -> None:
            environment = lab.need("tensorflow")
            if not self._runs:
                self._start(lab, environment)
            runs = {kind: run.result() for kind, run in self._runs[script].items()}
            row.details["runs"] = {kind: run.record() for kind, run in runs.items()}
            _judge(row, script, runs)

        return case

    def table(self, lab: Lab, row: Row) -> None:
        lab.need("tensorflow")
        row.verdict = "info"
        found = {script: {kind: run.result() for kind, run in runs.items()} for script, runs in self._runs.items()}
        row.section = _tables(found)
        if missing := [script for script in _SCRIPTS if script not in found]:
            row.add_note(f"without {', '.join(missing)}, which this run did not start")
        versions = {run.version for runs in found.values() for run in runs.values() if run.version}
        row.add_note(f"TensorFlow {', '.join(sorted(versions))}")

    def speed(self, lab: Lab, row: Row) -> None:
        """Measures steps per second, when no other run uses the machine."""
        environment = lab.need("tensorflow")
        wait([run for runs in self._runs.values() for run in runs.values()])
        _speed(lab, row, environment)

    def _start(self, lab: Lab, environment: dict[str, str]) -> None:
        beside, alone = ThreadPoolExecutor(_AT_ONCE), ThreadPoolExecutor(1)
        chosen = [script for script in _SCRIPTS if _name(script) in lab.names]
        capped = {
            script: {kind: beside.submit(_run, lab, environment, script, kind) for kind in ("capped", "steered")}
            for script in chosen
        }
        before = [run for runs in capped.values() for run in runs.values()]
        for script in chosen:
            self._runs[script] = capped[script] | {"bare": alone.submit(_run, lab, environment, script, "bare", before)}
        beside.shutdown(wait=False)
        alone.shutdown(wait=False)


def _run(lab: Lab, environment: dict[str, str], script: str, kind: str, before: list[Future[Run]] | None = None) -> Run:
    """Runs a script, once the runs `before` have ended."""
    wait(before or [])
    run = Run()
    try:
        session, job = _started(lab, environment, script, kind, _STEPS)
        with session:
            run.session = session
            run.version = session.expect("imported", _LIMIT_S)["version"]
            _go_through(lab, session, job, run)
    except Exception as error:  # a failure affects its own row only
        run.failed = str(error) if isinstance(error, ProgramFailed) else f"{type(error).__name__}: {error}"
    print(f"    {script}, {kind}: {run.way(*_MOMENTS)}", flush=True)
    return run


def _started(
    lab: Lab, environment: dict[str, str], script: str, kind: str, steps: int, number: int = 0
) -> tuple[Session, Job | None]:
    argv = lab.python("training/tensorflow_remedies.py", script, str(steps))
    name = f"tensorflow {script} {kind} {steps} {number}"
    policy = _POLICIES[kind]
    if policy is None:
        return lab.bare(argv, name, environment), None
    job = lab.job(name, f"{_CAP_MIB}MiB", **policy)
    return lab.capped(argv, job, environment), job


def _go_through(lab: Lab, session: Session, job: Job | None, run: Run) -> None:
    def measure(moment: str, said: Event) -> None:
        run.held[moment] = session.held_mib()
        in_use = said["in_use"]
        run.in_use[moment] = round(in_use / MIB, 1) if isinstance(in_use, int) else in_use
        run.ps[moment] = _ps_mib(lab, session.pid) if job else None

    session.tell("train")
    trained = session.expect("trained", _LIMIT_S)
    run.error, run.losses = trained["error"], trained["losses"]
    measure("trained", trained)
    session.tell("remedy")
    measure("after", session.expect("after", _LIMIT_S))
    if job:
        back = release(session, job.log)
        run.held["released"], run.released_ms, run.log = session.held_mib(), back.ms, back.log_line
    session.tell("again")
    again = session.expect("again", _LIMIT_S)
    run.losses = run.losses + again["losses"]
    measure("again", again)
    if job:
        release(session, job.log)
        run.held["released again"] = session.held_mib()
    session.end()


def _ps_mib(lab: Lab, pid: int) -> float | None:
    uses = [use for gpu in json.loads(lab.curb("ps", "--json").stdout)["gpus"] for use in gpu["uses"]]
    return next((round(use["books"]["held"] / MIB, 1) for use in uses if use["pid"] == pid and use["books"]), None)


def _judge(row: Row, script: str, runs: dict[str, Run]) -> None:
    whole = [run for run in runs.values() if not run.failed]
    for kind, run in runs.items():
        row.expect(not run.failed, f"{kind}: {run.failed}")
        if run.session and kind != "bare":
            row.watched(run.session.watch, _CAP_MIB)
        if not run.failed:
            row.expect(kind == "bare" or run.log is not None, f"{kind}: curb logged no release after SIGUSR1")
            row.expect(run.error == (_OOM if script == "oom" else None), f"{kind}: the error was {run.error}")
    row.goes_on = len(whole) == len(runs)
    losses = judge_losses(row, [{"losses": run.losses} for run in whole]) if whole else "unknown"
    row.error = ", ".join(sorted({run.error for run in whole if run.error}))
    steered = runs["steered"]
    if "released" in steered.held:
        row.released_mib, row.released_ms = round(steered.held["after"] - steered.held["released"], 1), steered.released_ms
    held = "; ".join(f"{kind} {run.way(*_MOMENTS[:3])}" for kind, run in runs.items())
    row.add_note(f"MiB held trained, after the remedy, after SIGUSR1: {held}; losses {losses}")


def _speed(lab: Lab, row: Row, environment: dict[str, str]) -> None:
    rounds, kinds = 1 if lab.quick else _ROUNDS, list(_POLICIES)
    # Each round starts with another kind, so that a drifting clock affects all kinds.
    turns = [kinds[number % len(kinds) :] + kinds[: number % len(kinds)] for number in range(rounds)]
    found: dict[tuple[str, str], list[float]] = {(script, kind): [] for script in _TIMED for kind in kinds}
    losses: dict[str, list[float]] = {}
    for number, turn in enumerate(turns):
        for script, steps in _TIMED.items():
            for kind in turn:
                session, _ = _started(lab, environment, script, kind, steps, number + 1)
                try:
                    session.expect("imported", _LIMIT_S)
                    session.tell("train")
                    trained = session.expect("trained", _LIMIT_S)
                finally:
                    with session:  # kills it. Until now NVML was not polled, because that could slow the program
                        pass
                found[script, kind].append(trained["steps_per_s"])
                same = trained["losses"] == losses.setdefault(script, trained["losses"])
                row.expect(same, f"{script}, {kind}: the losses differ")
    row.goes_on = True
    row.details["steps_per_s"] = {f"{script}, {kind}": values for (script, kind), values in found.items()}
    rows = [("", "bare, steps/s", *(f"{kind}, ratio" for kind in kinds[1:]))]
    for script in _TIMED:
        bare = found[script, "bare"]
        ratios = [_ratios(bare, found[script, kind]) for kind in kinds[1:]]
        rows.append((_SCRIPTS[script].split(";")[0], f"{statistics.median(bare):.1f}", *ratios))
    row.section = report.markdown_table(rows)
    row.add_note(f"{rounds} runs of each; " + "; ".join(" | ".join(cells) for cells in rows[1:]))


def _ratios(bare: list[float], other: list[float]) -> str:
    ratios = [b / a for a, b in zip(bare, other, strict=True)]
    return f"{statistics.median(ratios):.3f} (pairs {min(ratios):.3f} to {max(ratios):.3f})"


def _tables(found: dict[str, dict[str, Run]]) -> list[str]:
    held = [("script and remedy", *_POLICIES, "steered: trained again")]
    beside = [("", "", *(f"{figure}, {moment}" for moment in _MOMENTS[:2] for figure in ("NVML", "TensorFlow", "`curb ps`")))]
    for script, runs in found.items():
        ways = [runs[kind].way(*_MOMENTS[:3]) for kind in _POLICIES]
        held.append((_SCRIPTS[script], *ways, runs["steered"].way(*_MOMENTS[3:])))
        for kind, run in runs.items():
            figures = [one.get(moment) for moment in _MOMENTS[:2] for one in (run.held, run.in_use, run.ps)]
            beside.append((_SCRIPTS[script], kind, *map(_mib, figures)))
    return [
        f"MiB that NVML showed for the process: trained → after the remedy → after SIGUSR1. The cap is {_CAP_MIB:,} MiB.",
        "",
        *report.markdown_table(held),
        "",
        "The figures of TensorFlow (`get_memory_info`, formerly the op BytesInUse), NVML and `curb ps`, in MiB.",
        "",
        *report.markdown_table(beside),
    ]


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
