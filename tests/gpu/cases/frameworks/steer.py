"""`frameworks.steer`: the memory that JAX, TensorFlow and PyTorch hold by default and steered, the memory that a release returns,
and the cost of steering."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import report
from cases.frameworks.training import judge_losses, note_ratio
from lab import STEERED, Case, Lab
from measuring.watch import MIB
from releasing import release
from row import Row
from session import Event, Log, Session

_DEFAULT_HOLDS, _STEERED_HOLDS, _SHARE_BACK = 0.60, 0.25, 0.5
_COLUMNS = ("", "MiB trained", "MiB idle", "MiB after SIGUSR1", "steps/s")


@dataclass(frozen=True)
class Program:
    """`begins`: its first event. `waits`: then it waits for a command. `trained`, `idle`: the events at the end of the training,
    and when little memory is in use. `fills`: by default the framework takes most of the GPU at once."""

    module: str
    argv: tuple[str, ...]
    trained: str
    idle: str
    begins: str = ""
    waits: bool = False
    fills: bool = True


_PROGRAMS = {
    "steer JAX": Program("jax", ("training/jax_step.py", "200"), "trained", "deleted"),
    "steer TensorFlow": Program(
        "tensorflow", ("training/tensorflow_remedies.py", "function", "400"), "trained", "after", begins="imported", waits=True
    ),
    "steer PyTorch": Program("torch", ("training/torch_fragments.py", "60"), "done", "fragmented", begins="training", fills=False),
}


@dataclass
class Run:
    """The figures of one program, in MiB as NVML showed them."""

    trained: float
    idle: float
    done: Event
    idle_event: Event
    released: float | None = None
    """None: it got no signal, because SIGUSR1 would end a program without curb."""
    released_ms: float | None = None
    log: str | None = None

    def cells(self) -> list[str]:
        held = ["" if mib is None else f"{mib:,.0f}" for mib in (self.trained, self.idle, self.released)]
        return [*held, f"{self.done['steps_per_s']:.1f}"]


def _run(row: Row, session: Session, program: Program, log: Log | None = None) -> Run:
    with row.watching(session, None):
        if program.begins:
            session.expect(program.begins, 120)
        if program.waits:
            session.tell("train")
        done = session.expect(program.trained, 120)
        trained = session.held_mib()
        session.tell("go on")
        idle_event = session.expect(program.idle, 60)
        run = Run(trained, session.held_mib(), done, idle_event)
        if log:
            back = release(session, log)
            run.released, run.released_ms, run.log = session.held_mib(), back.ms, back.log_line
            row.expect(back.log_line is not None, "curb logged no release after SIGUSR1")
        if program.module == "torch":
            session.tell("again")
            row.expect(session.expect("again", 30)["intact"], "the memory was overwritten")
        if program.module != "tensorflow":
            session.end()
    return run


def steer_case(program: Program) -> Case:
    def case(lab: Lab, row: Row) -> None:
        packages = lab.need(program.module)
        argv = lab.python(*program.argv)
        runs: dict[str, list[Run]] = {"default": [], "steered": []}
        for turn in range(1 if lab.quick else 2):
            for kind, policy in (("default", {}), ("steered", STEERED)):
                job = lab.job(f"{row.name} {kind} {turn}", None, **policy)
                # An allocator that fills the GPU by default returns nothing, so curb could not release anything.
                if kind == "default" and program.fills:
                    runs[kind].append(_run(row, lab.bare(argv, job.folder.name, packages), program))
                else:
                    runs[kind].append(_run(row, lab.capped(argv, job, packages), program, job.log))
        row.goes_on = True
        row.details["runs"] = {kind: [asdict(run) for run in some] for kind, some in runs.items()}
        losses = judge_losses(row, [run.done for some in runs.values() for run in some])
        row.add_note(f"{program.argv[-1]} losses {losses}")
        (_judge_filling if program.fills else _judge_fragments)(row, runs, lab.device.total() / MIB)
        last = runs["steered"][-1]
        row.released_mib, row.released_ms = round(last.idle - (last.released or 0.0), 1), last.released_ms
        default, steered = ([run.done["steps_per_s"] for run in some] for some in runs.values())
        note_ratio(row, default, steered)
        row.section = report.markdown_table([_COLUMNS, *([kind, *some[-1].cells()] for kind, some in runs.items())])

    return case


def _judge_filling(row: Row, runs: dict[str, list[Run]], total_mib: float) -> None:
    for run in runs["default"]:
        row.expect(run.trained > _DEFAULT_HOLDS * total_mib, f"by default only {run.trained:,.0f} of {total_mib:,.0f} MiB are held")
    for run in runs["steered"]:
        row.expect(run.trained < _STEERED_HOLDS * total_mib, f"steered it holds {run.trained:,.0f} of {total_mib:,.0f} MiB")
        if row.name == "steer JAX":
            back = run.trained - (run.released or 0.0)
            row.expect(back >= _SHARE_BACK * run.trained, f"only {back:,.0f} of {run.trained:,.0f} MiB came back")


def _judge_fragments(row: Row, runs: dict[str, list[Run]], _: float) -> None:
    for kind, some in runs.items():
        for run in some:
            row.expect(run.idle_event["intact"], "the memory was overwritten")
            expandable = run.idle_event["expandable"]
            row.expect(expandable == (kind == "steered"), f"{kind}: expandable segments are {'on' if expandable else 'off'}")
    worst, best = min(run.released or 0 for run in runs["default"]), max(run.released or 0 for run in runs["steered"])
    row.expect(best < worst, f"after the release {best:,.0f} MiB are held steered, {worst:,.0f} by default: no gain")


STEER = {name: steer_case(program) for name, program in _PROGRAMS.items()}
