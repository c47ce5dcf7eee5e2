"""Releases by SIGUSR1 for each framework and allocator, compared with the framework's own call; releases of an idle program; and
the step `pressure`: one refused allocation."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import report
from lab import STEERED, Lab, torch_allocator
from measuring.watch import MIB
from releasing import Release, release
from row import Row
from session import Session, Unavailable

_STATES = ("sleep", "compute", "loader")
# A release must return this share of what the framework's own call returns, and may take _TIMES as long, plus _PLUS_MS.
_SHARE, _TIMES, _PLUS_MS = 0.99, 1.1, 10.0
_LEFT_MIB = 64
"""The most that may stay of a cache of 3,584 MiB: segments with live blocks, and code that was loaded meanwhile."""
_COLUMNS = ("framework", "cached MiB", "own call", "while it sleeps", "while it computes", "in a data loader")


@dataclass(frozen=True)
class Kind:
    framework: str
    env: dict[str, str] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    gives: bool = True
    """False: the framework returns no memory to the driver."""
    answers: bool | None = None
    """True if it frees its cache when an allocation is refused; None: not tested."""


KINDS = {
    "PyTorch, native": Kind("torch", answers=True),
    "PyTorch, expandable segments": Kind("torch", torch_allocator("expandable_segments:True"), answers=True),
    "PyTorch, cudaMallocAsync": Kind("torch", torch_allocator("backend:cudaMallocAsync"), answers=False),
    "JAX, default": Kind("jax", gives=False),
    "JAX, steered": Kind("jax", policy=STEERED, answers=False),
    "TensorFlow, default": Kind("tensorflow", gives=False),
    "TensorFlow, steered": Kind("tensorflow", policy=STEERED),
    "CuPy": Kind("cupy", answers=True),
}


def fill_cache(session: Session) -> int:
    """Fills the cache of release_states.py. Returns the bytes held before that, with code and workspaces loaded."""
    session.expect("base", 180)
    base: int = session.watch.settle()
    session.tell("cache")
    session.expect("cached", 60)
    return base


def enter(session: Session, state: str) -> int:
    """Puts release_states.py into a state, with its cache full. Returns the bytes held."""
    session.tell(state)
    session.expect("cached", 60)
    return session.watch.settle()


def leave(row: Row, session: Session, what: str) -> None:
    session.tell("stop")
    row.expect(session.expect("stopped", 60)["correct"], f"{what}: computes wrongly")


def _release_by_framework(lab: Lab, row: Row) -> None:
    """Without a cap the defaults of JAX and TensorFlow take most of the device, and return none of it."""
    found: dict[str, Any] = {}
    for name, kind in KINDS.items():
        try:
            packages = lab.need(kind.framework)
        except Unavailable as why:
            row.add_note(f"without {name}: {why}")
            continue
        found[name] = _one(lab, row, name, kind, packages)
    if not found:
        raise Unavailable("none of the frameworks is installed")
    row.goes_on = True
    row.details["frameworks"] = found
    row.section = [
        *report.markdown_table([_COLUMNS, *(_cells(name, one) for name, one in found.items())]),
        "",
        "MiB by which NVML's figure for the process fell, and the time. The program timed its own call. A release: from the "
        "signal until NVML showed the last change (median of three), and in brackets curb's own figure.",
    ]


def _one(lab: Lab, row: Row, name: str, kind: Kind, packages: dict[str, str]) -> dict[str, Any]:
    job = lab.job(f"{row.name} {name}", None, **kind.policy)
    states: dict[str, Any] = {}
    with row.watching(lab.capped(lab.python("fill/release_states.py", kind.framework), job, kind.env | packages), None) as session:
        base = fill_cache(session)
        cached = session.watch.settle()
        session.tell("own")
        own_ms = session.expect("own", 30)["ms"]
        own_mib = round((cached - session.watch.settle()) / MIB)
        for state in _STATES:
            tries: list[Release] = []
            left: list[int] = []
            for _ in range(3):
                held = enter(session, state)
                tries.append(release(session, job.log))
                left.append(round((session.watch.settle() - base) / MIB))
                leave(row, session, f"{name}, {state}")
            states[state] = {
                "cached_mib": round((held - base) / MIB),
                "left_mib": left,
                "mib": [one.mib for one in tries],
                "ms": [one.ms for one in tries],
                "log": [one.log_line for one in tries],
            }
            _judge(row, f"{name}, {state}", kind, own_mib, own_ms, tries, max(left))
        session.end()
    return {"own_mib": own_mib, "own_ms": own_ms, "states": states}


def _judge(
    row: Row, what: str, kind: Kind, own_mib: int, own_ms: float | None, tries: list[Release], left_mib: int
) -> None:
    row.expect(all(one.log_line for one in tries), f"{what}: curb logged no release")
    worst = min(one.mib for one in tries)
    if not kind.gives:
        row.expect(worst == 0, f"{what}: {worst:.0f} MiB came back; this allocator should return none")
        return
    row.expect(left_mib <= _LEFT_MIB, f"{what}: {left_mib} MiB more than before the cache are still held")
    if own_ms is not None:
        row.expect(worst >= _SHARE * own_mib, f"{what}: {worst:.0f} MiB came back, by the framework's own call {own_mib}")
        ms = statistics.median(one.ms or 0.0 for one in tries)
        row.expect(ms <= _TIMES * own_ms + _PLUS_MS, f"{what}: took {ms:.1f} ms, the framework's own call {own_ms:.1f}")


def _cells(name: str, found: dict[str, Any]) -> list[str]:
    own = "has none" if found["own_ms"] is None else f"{found['own_mib']:,} MiB, {found['own_ms']:.1f} ms"
    cells = [name, f"{found['states']['sleep']['cached_mib']:,}", own]
    for one in found["states"].values():
        times = [ms for ms in one["ms"] if ms is not None]
        mib = statistics.median(one["mib"])
        cells.append(f"{mib:,.0f} MiB" + (f", {statistics.median(times):.1f} ms ({_logged_time(one['log'])})" if times else ""))
    return cells


def _logged_time(lines: list[str | None]) -> str:
    """Returns the median time of the lines `released 3.5 GiB in 4.6 ms on …`."""
    times = sorted(float(line.split(" in ")[1].split(" ms")[0]) for line in lines if line)
    return f"{times[len(times) // 2]:g} ms" if times else "none"


_IDLE_S = 3.0
_BUSY_S = {"sleep": 0.0, "compute": 6.0, "kernel": 8.0}
"""The seconds for which each state keeps the GPU busy."""


def _idle(lab: Lab, row: Row) -> None:
    """curb releases once in an idle period, and not while a kernel or a training runs. NVML samples the GPU's use once a second."""
    lab.need("torch")
    job = lab.job(row.name, None, release={"idle": f"{_IDLE_S:g}s"})
    with row.watching(lab.capped(lab.python("fill/release_states.py", "torch"), job), None) as session:
        fill_cache(session)
        found: dict[str, float] = {}
        for state, busy_s in _BUSY_S.items():
            held = enter(session, state)
            start, seen = time.monotonic(), len(job.log.messages())
            if state == "compute":
                early = job.log.wait_for("released", seen, busy_s)
                row.expect(early is None, f"released while the program computes: {early}")
                leave(row, session, state)
                start = time.monotonic()
            line = job.log.wait_for("on idle for", seen, busy_s + _IDLE_S + 6.0)
            took = time.monotonic() - start
            row.expect(line is not None, f"{state}: no release within {took:.0f} s")
            row.expect(took >= busy_s * (state == "kernel") + _IDLE_S - 0.5, f"{state}: released too early, after {took:.1f} s")
            row.expect(held - session.watch.settle() > 3000 * MIB, f"{state}: the cache is still held")
            found[state] = round(took, 1)
            again = job.log.wait_for("released", len(job.log.messages()), 2 * _IDLE_S)
            row.expect(again is None, f"{state}: released twice in the same idle period: {again}")
            if state != "compute":
                leave(row, session, state)
        session.end()
    row.goes_on = True
    row.details["released_after_s"] = found
    row.add_note(
        f"release.idle {_IDLE_S:g} s: released {found['sleep']} s after the last call, {found['compute']} s after the last step, "
        f"{found['kernel']} s after the launch of a kernel that ran for 8 s; once each"
    )


def _pressure(lab: Lab, row: Row) -> None:
    """Only the step `pressure`. A framework that answers it frees its cache and goes on; curb does not refuse the others."""
    found: dict[str, float] = {}
    for name, kind in KINDS.items():
        if kind.answers is None:
            continue
        try:
            lab.need(kind.framework)
        except Unavailable as why:
            row.add_note(f"without {name}: {why}")
            continue
        job = lab.job(f"{row.name} {name}", None, **kind.policy, release={"steps": ["pressure"]})
        with row.watching(lab.capped(lab.python("fill/release_states.py", kind.framework), job, kind.env), None) as session:
            fill_cache(session)
            held, seen = enter(session, "large"), len(job.log.messages())
            session.send()
            row.expect(job.log.wait_for("released", seen, 10) is not None, f"{name}: no release was logged")
            session.tell("go on")
            large = session.expect("large", 60)
            row.expect(large["correct"], f"{name}: computes wrongly after the refusal")
            found[name] = round(large["mib"] - (session.watch.settle() - held) / MIB)
            session.end()
        messages = job.log.messages()[seen:]
        row.details.setdefault("logs", {})[name] = messages
        if kind.answers:
            row.expect(found[name] > 3000, f"{name}: only {found[name]} MiB of its cache came back")
        refused = any("was refused once" in line for line in messages)
        row.expect(refused == kind.answers, f"{name}: {'an' if refused else 'no'} allocation was refused")
    if not found:
        raise Unavailable("none of the frameworks is installed")
    row.goes_on = True
    row.details["less_mib"] = found
    row.add_note("came back: " + ", ".join(f"{name} {mib:,.0f} MiB" for name, mib in found.items() if KINDS[name].answers))


RELEASE = {
    "release by framework": _release_by_framework,
    "release when idle": _idle,
    "pressure by framework": _pressure,
}
