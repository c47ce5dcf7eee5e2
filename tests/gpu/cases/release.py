"""What a release gives back, by framework and allocator, beside the framework's own call made inside the program; from
a program that sleeps, computes or waits for its data loader."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import report
from lab import Lab, Unavailable, torch_allocator
from releasing import Release, release
from row import Row
from session import Session
from watch import MIB

_STATES = ("sleep", "compute", "loader")
# Of what the framework's own call gives back, and how much later than that.
_SHARE, _TIMES, _PLUS_MS = 0.99, 1.1, 10.0
_LEFT_MIB = 64
"""What may stay of a cache of 3,584: segments that hold something, and code that was loaded meanwhile."""
_COLUMNS = ("framework", "cached MiB", "own call", *(f"while it {state}s" for state in ("sleep", "compute")), "in a data loader")


@dataclass(frozen=True)
class Kind:
    framework: str
    env: dict[str, str] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    nothing: bool = False
    """Whether the framework keeps all it ever took, whatever is asked."""


KINDS = {
    "PyTorch, native": Kind("torch"),
    "PyTorch, expandable segments": Kind("torch", torch_allocator("expandable_segments:True")),
    "PyTorch, cudaMallocAsync": Kind("torch", torch_allocator("backend:cudaMallocAsync")),
    "JAX, default": Kind("jax", nothing=True),
    "JAX, steered": Kind("jax", policy={"frameworks": {"steer": True}}),
    "TensorFlow, default": Kind("tensorflow", nothing=True),
    "TensorFlow, steered": Kind("tensorflow", policy={"frameworks": {"steer": True}}),
    "CuPy": Kind("cupy"),
}


def release_by_framework(lab: Lab, row: Row) -> None:
    """No cap: the defaults of JAX and TensorFlow take most of the device, and all of it is to be seen to stay."""
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
        "MiB that NVML showed less for the process, and ms: of the own call as the program timed it; of a release from the "
        "signal until NVML showed the last of it (median of the states' three), and in brackets by curb's own account.",
    ]


def _one(lab: Lab, row: Row, name: str, kind: Kind, packages: dict[str, str]) -> dict[str, Any]:
    job = lab.job(f"{row.name} {name}", None, **kind.policy)
    states: dict[str, Any] = {}
    env = kind.env | packages
    with row.watching(lab.capped(lab.python("release_states.py", kind.framework), job, env), None) as session:
        base = _begin(session)
        cached = session.watch.settle()
        session.tell("own")
        own_ms = session.expect("own", 30)["ms"]
        own_mib = round((cached - session.watch.settle()) / MIB)
        for state in _STATES:
            tries: list[Release] = []
            left: list[int] = []
            for _ in range(3):
                session.tell(state)
                session.expect("cached", 60)
                held = session.watch.settle()
                tries.append(release(session, job.log))
                left.append(round((session.watch.settle() - base) / MIB))
                session.tell("stop")
                stopped = session.expect("stopped", 30)
                row.expect(stopped["correct"], f"{name}: computes wrongly after a release while it {state}s")
            states[state] = {
                "cached_mib": round((held - base) / MIB),
                "left_mib": left,
                "mib": [one.mib for one in tries],
                "ms": [one.ms for one in tries],
                "log": [one.log_line for one in tries],
            }
            _judge(row, f"{name}, {state}", kind, own_mib, own_ms, tries, max(left))
        session.end()
    return {"cached_mib": round((cached - base) / MIB), "own_mib": own_mib, "own_ms": own_ms, "states": states}


def _begin(session: Session) -> int:
    """Fills the cache; what was held before, with code and workspaces in place."""
    session.expect("base", 120)
    base: int = session.watch.settle()
    session.tell("cache")
    session.expect("cached", 60)
    return base


def _judge(
    row: Row, what: str, kind: Kind, own_mib: int, own_ms: float | None, tries: list[Release], left_mib: int
) -> None:
    row.expect(all(one.log_line for one in tries), f"{what}: curb logged no release")
    worst = min(one.mib for one in tries)
    if kind.nothing:
        row.expect(worst == 0, f"{what}: {worst:.0f} MiB came back, which it was thought never to give")
        return
    row.expect(left_mib <= _LEFT_MIB, f"{what}: {left_mib} MiB more than before are still held")
    ms = statistics.median(one.ms or 0.0 for one in tries)
    if own_ms is not None:
        row.expect(worst >= _SHARE * own_mib, f"{what}: {worst:.0f} MiB came back, the own call gives {own_mib}")
        limit = _TIMES * own_ms + _PLUS_MS
        row.expect(ms <= limit, f"{what}: took {ms:.1f} ms, the own call {own_ms:.1f}")


def _cells(name: str, found: dict[str, Any]) -> list[str]:
    own = "has none" if found["own_ms"] is None else f"{found['own_mib']:,} MiB, {found['own_ms']:.1f} ms"
    cells = [name, f"{found['states']['sleep']['cached_mib']:,}", own]
    for state in _STATES:
        one = found["states"][state]
        times = [ms for ms in one["ms"] if ms is not None]
        mib = statistics.median(one["mib"])
        cells.append(f"{mib:,.0f} MiB" + (f", {statistics.median(times):.1f} ms ({_curbs(one['log'])})" if times else ""))
    return cells


def _curbs(lines: list[str | None]) -> str:
    """The time in `released 3.5 GiB in 4.6 ms on …`, the median line's."""
    times = sorted(float(line.split(" in ")[1].split(" ms")[0]) for line in lines if line)
    return f"{times[len(times) // 2]:g} ms" if times else "none"


# ---- by itself, when idle ----

_IDLE_S = 3.0


def idle(lab: Lab, row: Row) -> None:
    """Once in an idle period, and not while a kernel runs on or steps are made. NVML samples once a second."""
    lab.need("torch")
    job = lab.job(row.name, None, release={"idle": f"{_IDLE_S:g}s"})
    with row.watching(lab.capped(lab.python("release_states.py", "torch"), job), None) as session:
        _begin(session)
        found: dict[str, float | None] = {}
        for state, busy_s in (("sleep", 0.0), ("compute", 6.0), ("kernel", 8.0)):
            session.tell(state)
            session.expect("cached", 60)
            held, start, seen = session.watch.settle(), time.monotonic(), len(job.log.messages())
            if state == "compute":
                early = job.log.wait_for("released", seen, busy_s)
                row.expect(early is None, f"released while it computes: {early}")
                session.tell("stop")
                session.expect("stopped", 30)
                start = time.monotonic()
            line = job.log.wait_for("on idle for", seen, busy_s + _IDLE_S + 6.0)
            took = time.monotonic() - start
            row.expect(line is not None, f"{state}: no release within {took:.0f} s")
            row.expect(took >= busy_s * (state == "kernel") + _IDLE_S - 0.5, f"{state}: released after {took:.1f} s already")
            row.expect(held - session.watch.settle() > 3000 * MIB, f"{state}: the cache is still held")
            found[state] = round(took, 1)
            again = job.log.wait_for("released", len(job.log.messages()), 2 * _IDLE_S)
            row.expect(again is None, f"{state}: released a second time in the same idle period: {again}")
            if state != "compute":
                session.tell("stop")
                session.expect("stopped", 30)
        session.end()
    row.goes_on = True
    row.details["released_after_s"] = found
    row.add_note(
        f"release.idle {_IDLE_S:g} s: released {found['sleep']} s after the last call, {found['compute']} s after the last step, "
        f"{found['kernel']} s after the launch of a kernel that ran for 8 s; once each"
    )


# ---- by one refused allocation ----

_LARGE_MIB = 4608
"""What the program asks for then: more than is cached, which expandable segments would only add to."""
_ANSWERS = {"PyTorch, native": True, "PyTorch, expandable segments": True, "CuPy": True}
_NEVER = {"PyTorch, cudaMallocAsync": False, "JAX, steered": False}


def pressure(lab: Lab, row: Row) -> None:
    """The step alone: those that answer give their cache back and go on, the others see nothing of it. What is cached serves no
    part of the large allocation (but for expandable segments), so without a refusal it would come on top."""
    found: dict[str, float] = {}
    for name, answers in {**_ANSWERS, **_NEVER}.items():
        kind = KINDS[name]
        lab.need(kind.framework)
        policy = {**kind.policy, "release": {"steps": ["pressure"]}}
        job = lab.job(f"{row.name} {name}", None, **policy)
        with row.watching(lab.capped(lab.python("release_states.py", kind.framework), job, kind.env), None) as session:
            _begin(session)
            session.tell("large")
            session.expect("cached", 60)
            held, seen = session.watch.settle(), len(job.log.messages())
            session.send()
            row.expect(job.log.wait_for("released", seen, 10) is not None, f"{name}: no release was logged")
            session.tell("go on")
            row.expect(session.expect("large", 60)["correct"], f"{name}: computes wrongly after the refusal")
            more = session.watch.settle() - held
            found[name] = round(_LARGE_MIB - more / MIB)
            session.end()
        row.details.setdefault("logs", {})[name] = job.log.messages()[seen:]
        if answers:
            row.expect(found[name] > 3000, f"{name}: all but {found[name]} of {_LARGE_MIB} MiB came on top of what was cached")
        said = any("was refused once" in line for line in row.details["logs"][name])
        row.expect(said == answers, f"{name}: {'nothing was refused' if answers else 'an allocation was refused'}")
    row.goes_on = True
    row.details["less_mib"] = found
    row.add_note("came back: " + ", ".join(f"{name} {found[name]:,.0f} MiB" for name in _ANSWERS))


RELEASE = {
    "release by framework": release_by_framework,
    "release when idle": idle,
    "pressure by framework": pressure,
}
