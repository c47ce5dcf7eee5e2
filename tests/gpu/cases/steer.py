"""What `frameworks.steer` is worth: what JAX, TensorFlow and PyTorch hold by default and steered, what comes back, what it costs."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

import report
from lab import Lab
from releasing import release
from row import Row
from session import Job, Session
from watch import MIB

_STEER: dict[str, Any] = {"frameworks": {"steer": True}}
_ALLOC_CONF = "expandable_segments:True"

_JAX_STEPS, _JAX_STEPS_SHORT = 200, 100
_DEFAULT_HOLDS, _STEERED_HOLDS, _SHARE_BACK = 0.60, 0.25, 0.5

_TENSORFLOW_STEPS = 400
_TORCH_STEPS = 60

_JAX_COLUMNS = ("MiB during", "MiB after delete", "MiB after SIGUSR1", "ms per step")
_TENSORFLOW_COLUMNS = ("MiB during", "MiB after delete", "MiB after SIGUSR1", "steps/s")
_TORCH_COLUMNS = ("MiB after training", "MiB in fragments", "MiB after SIGUSR1", "steps/s")


@dataclass
class Run:
    """One program's run. What was held is NVML's figure, in MiB."""

    during: float | None = None
    """At the end of the training, with everything alive; None: nothing was trained."""
    idle: float = 0.0
    """When little is alive any more: JAX's arrays are deleted; of PyTorch's, the small tensors are left."""
    released: float | None = None
    """After SIGUSR1; None: curb was not there."""
    losses: list[float] = field(default_factory=list, repr=False)
    speed: float | None = None
    """JAX: ms per step. The others: steps/s."""
    log: str | None = None
    released_ms: float | None = None

    def record(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "losses"}


# ---- JAX ----


def steer_jax(lab: Lab, row: Row) -> None:
    """Bare, and steered under a policy that says nothing else, in turn, so that a clock that drifts meets both."""
    lab.need("jax")
    total_mib = lab.device.total() / MIB
    argv = lab.python("jax_step.py", str(_JAX_STEPS))
    default: list[Run] = []
    steered: list[Run] = []
    for turn in range(1 if lab.quick else 2):
        default.append(_jax(row, lab.bare(argv, f"{row.name} default {turn}")))
        job = lab.job(f"{row.name} steered {turn}", None, **_STEER)
        steered.append(_jax(row, lab.capped(argv, job), job))
    row.goes_on = True
    row.details["runs"] = {"default": [run.record() for run in default], "steered": [run.record() for run in steered]}
    _judge_losses(row, default + steered)
    for run in default:
        held = run.during or 0.0
        row.expect(held > _DEFAULT_HOLDS * total_mib, f"by default only {held:,.0f} of {total_mib:,.0f} MiB are held")
    for run in steered:
        held = run.during or 0.0
        row.expect(held < _STEERED_HOLDS * total_mib, f"steered it holds {held:,.0f} of {total_mib:,.0f} MiB")
        back = held - (run.released or 0.0)
        row.expect(back >= _SHARE_BACK * held, f"only {back:,.0f} of {held:,.0f} MiB came back")
    _take_over_release(row, steered[-1])
    _note_ratio(row, "ms per step", [run.speed for run in default], [run.speed for run in steered])
    row.add_note(f"{_JAX_STEPS} losses {_same(default + steered)}")
    row.section = _table(_JAX_COLUMNS, {"default, without curb": default[-1], "steered": steered[-1]})


_VARIABLES = {
    "PREALLOCATE=false": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    "ALLOCATOR=cuda_async": {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"},
    "both": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"},
}


def steer_variables(lab: Lab, row: Row) -> None:
    """Each of JAX's variables alone and both together, set by the user. Measured, not judged, but for what is computed."""
    lab.need("jax")
    row.verdict = "info"
    argv = lab.python("jax_step.py", str(_JAX_STEPS_SHORT))
    runs: dict[str, Run] = {}
    for name, env in _VARIABLES.items():
        job = lab.job(f"{row.name} {name}", None)
        runs[name] = _jax(row, lab.capped(argv, job, env), job)
    row.goes_on = True
    row.details["runs"] = {name: run.record() for name, run in runs.items()}
    _judge_losses(row, list(runs.values()))
    row.section = _table(_JAX_COLUMNS, runs)
    for name, run in runs.items():
        row.add_note(
            f"{name}: {run.during:,.0f} MiB during, {run.idle:,.0f} after delete, {run.released:,.0f} after SIGUSR1, "
            f"{run.speed:.2f} ms per step"
        )


def _jax(row: Row, session: Session, job: Job | None = None) -> Run:
    """`job`: that of curb; None: the program runs bare, and no signal is sent, which would kill it."""
    with row.watching(session, None):
        trained = session.expect("trained", 120)
        run = Run(_settled_mib(session), losses=trained["losses"], speed=trained["ms_per_step"])
        session.tell("delete")
        session.expect("deleted", 30)
        run.idle = _settled_mib(session)
        if job:
            _release(row, session, job, run)
        session.end()
    return run


# ---- TensorFlow ----


def steer_tensorflow(lab: Lab, row: Row) -> None:
    """As JAX: bare, and steered without a cap, in turn."""
    packages = lab.need("tensorflow")
    total_mib = lab.device.total() / MIB
    argv = lab.python("tensorflow_remedies.py", "function", str(_TENSORFLOW_STEPS))
    default: list[Run] = []
    steered: list[Run] = []
    for turn in range(1 if lab.quick else 2):
        default.append(_tensorflow(row, lab.bare(argv, f"{row.name} default {turn}", packages)))
        job = lab.job(f"{row.name} steered {turn}", None, **_STEER)
        steered.append(_tensorflow(row, lab.capped(argv, job, packages), job))
    row.goes_on = True
    row.details["runs"] = {"default": [run.record() for run in default], "steered": [run.record() for run in steered]}
    _judge_losses(row, default + steered)
    for run in default:
        held = run.during or 0.0
        row.expect(held > _DEFAULT_HOLDS * total_mib, f"by default only {held:,.0f} of {total_mib:,.0f} MiB are held")
    for run in steered:
        held = run.during or 0.0
        row.expect(held < _STEERED_HOLDS * total_mib, f"steered it holds {held:,.0f} of {total_mib:,.0f} MiB")
    _take_over_release(row, steered[-1])
    _note_ratio(row, "steps/s", [run.speed for run in default], [run.speed for run in steered])
    row.add_note(f"{_TENSORFLOW_STEPS} losses {_same(default + steered)}")
    row.section = _table(_TENSORFLOW_COLUMNS, {"default, without curb": default[-1], "steered": steered[-1]})


def _tensorflow(row: Row, session: Session, job: Job | None = None) -> Run:
    """`job`: as in _jax."""
    with row.watching(session, None):
        session.expect("imported", 120)
        session.tell("train")
        trained = session.expect("trained", 120)
        run = Run(_settled_mib(session), losses=trained["losses"], speed=trained["steps_per_s"])
        session.tell("remedy")
        session.expect("after", 30)
        run.idle = _settled_mib(session)
        if job:
            _release(row, session, job, run)
    return run


# ---- PyTorch ----


def steer_torch(lab: Lab, row: Row) -> None:
    """All under curb, so that all can be asked to release: by default, steered, and by the variable's newer name alone."""
    lab.need("torch")
    default: list[Run] = []
    steered: list[Run] = []
    warnings: dict[str, list[str]] = {}
    expandable: dict[str, bool] = {}

    def run(kind: str, turn: int, steps: int, env: dict[str, str] | None = None, **policy: Any) -> Run:
        job = lab.job(f"{row.name} {kind} {turn}", None, **policy)
        session = lab.capped(lab.python("torch_fragments.py", str(steps)), job, env)
        found, expandable[kind] = _torch(row, session, job, steps > 0)
        warnings[kind] = session.stderr_lines("ALLOC_CONF")
        return found

    for turn in range(1 if lab.quick else 2):
        default.append(run("default", turn, _TORCH_STEPS))
        steered.append(run("steered", turn, _TORCH_STEPS, **_STEER))
    newer = run("PYTORCH_ALLOC_CONF alone", 0, 0, {"PYTORCH_ALLOC_CONF": _ALLOC_CONF})
    row.goes_on = True
    row.details |= {
        "runs": {
            "default": [run.record() for run in default],
            "steered": [run.record() for run in steered],
            "PYTORCH_ALLOC_CONF alone": newer.record(),
        },
        "expandable": expandable,
        "stderr": warnings,
    }
    _judge_losses(row, default + steered)
    row.expect(not expandable["default"], "PyTorch has expandable segments by default here: there is nothing to compare")
    row.expect(expandable["steered"], "steered PyTorch has no expandable segments: it did not read the variable")
    worst, best = min(run.released or 0 for run in default), max(run.released or 0 for run in steered)
    row.expect(best < worst, f"after the release {best:,.0f} MiB stay steered, {worst:,.0f} by default: it is no gain")
    _take_over_release(row, steered[-1])
    _note_ratio(row, "steps/s", [run.speed for run in default], [run.speed for run in steered])
    row.add_note(f"{_TORCH_STEPS} losses {_same(default + steered)}")
    reads = "also heeds" if expandable["PYTORCH_ALLOC_CONF alone"] else "does NOT heed"
    row.add_note(f"this PyTorch {reads} PYTORCH_ALLOC_CONF when it is set alone")
    row.add_note(
        "stderr on PYTORCH_CUDA_ALLOC_CONF: " + (f"'{warnings['steered'][0][:200]}'" if warnings["steered"] else "nothing")
    )
    kinds = {"default": default[-1], "steered": steered[-1], "PYTORCH_ALLOC_CONF alone": newer}
    row.section = _table(_TORCH_COLUMNS, kinds)


def _torch(row: Row, session: Session, job: Job, trains: bool) -> tuple[Run, bool]:
    """What was found, and whether PyTorch had expandable segments."""
    run = Run()
    with row.watching(session, None):
        if trains:
            session.expect("training", 60)
            trained = session.expect("done", 60)
            run = Run(_settled_mib(session), losses=trained["losses"], speed=trained["steps_per_s"])
            session.tell("go on")
        fragmented = session.expect("fragmented", 60)
        run.idle = _settled_mib(session)
        _release(row, session, job, run)
        session.tell("again")
        again = session.expect("again", 30)
        session.end()
    row.expect(fragmented["intact"] and again["intact"], "memory does not hold what was written")
    return run, bool(fragmented["expandable"])


# ---- both ----


def _settled_mib(session: Session) -> float:
    return round(session.watch.settle() / MIB, 1)


def _release(row: Row, session: Session, job: Job, run: Run) -> None:
    back = release(session, job.log)
    run.log, run.released_ms = back.log_line, back.ms
    run.released = _settled_mib(session)
    row.expect(back.log_line is not None, "curb logged no release after SIGUSR1")


def _take_over_release(row: Row, run: Run) -> None:
    row.released_mib, row.released_ms = round(run.idle - (run.released or 0.0), 1), run.released_ms
    row.details["log"] = run.log


def _judge_losses(row: Row, runs: list[Run]) -> None:
    losses = runs[0].losses
    row.expect(losses[-1] < losses[0], f"the loss did not fall ({losses[0]:.4g} -> {losses[-1]:.4g}): nothing was trained")
    row.expect(all(run.losses == losses for run in runs), "the losses of the runs differ")


def _same(runs: list[Run]) -> str:
    return "identical" if all(run.losses == runs[0].losses for run in runs) else "DIFFERENT"


def _note_ratio(row: Row, unit: str, default: list[float | None], steered: list[float | None]) -> None:
    ratios = [b / a for a, b in zip(default, steered, strict=True) if a and b]
    row.details |= {"ratio": statistics.median(ratios), "ratios": ratios}
    without, with_steer = (statistics.median(filter(None, runs)) for runs in (default, steered))
    row.add_note(
        f"steered {with_steer:.2f} {unit} against {without:.2f} by default: "
        f"ratio {statistics.median(ratios):.3f} (pairs {min(ratios):.3f} to {max(ratios):.3f})"
    )


def _table(columns: tuple[str, ...], runs: dict[str, Run]) -> list[str]:
    def cell(value: float | None, form: str = ",.0f") -> str:
        return "" if value is None else format(value, form)

    rows = [
        (name, cell(run.during), cell(run.idle), cell(run.released), cell(run.speed, ".2f")) for name, run in runs.items()
    ]
    return report.markdown_table([("", *columns), *rows])


STEER = {
    "steer JAX": steer_jax,
    "steer TensorFlow": steer_tensorflow,
    "steer PyTorch": steer_torch,
    "steer JAX, one variable at a time": steer_variables,
}
