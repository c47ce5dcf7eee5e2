"""Turns: programs that never idle share a GPU that cannot hold them together."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import Any

from cases.moves import USERS, open_to_users, training_of
from cases.nap import end, turn
from cases.suspend import filled, judge_same, status_of
from lab import Case, Lab
from row import Row
from session import Job, Session

_SHARE = 0.6
"""Of the room, for each of two trainings."""
_LONGEST_S = 550


def _job(lab: Lab, name: str, length: str) -> Job:
    return lab.job(name, "100%", suspend={"turn": length})


def _turns_of(lab: Lab, session: Session) -> dict[str, Any]:
    return status_of(lab, session).get("turn") or {}


def _two_trainings(length_s: int, most: float) -> Case:
    """Two trainings of 60 % of the room each, always busy, beside one after the other."""

    def judge(lab: Lab, row: Row) -> None:
        packages = lab.need("torch")
        lab.built("bin/curb")
        # Two minutes on an H200; a quick run is shorter.
        length, steps = (f"{length_s}s", 150) if not lab.quick else ("10s", 50)
        argv = lab.python("training/suspend_train.py", "torch", "huge", str(steps))
        began = time.monotonic()
        with lab.bare(argv, f"{row.name} alone", packages) as session:
            session.expect("training", 180)
            held = session.held_mib()
            alone = session.expect("done", _LONGEST_S)
            session.end()
        alone_s = time.monotonic() - began
        with ExitStack() as ends:
            ends.enter_context(filled(lab, row, leave_mib=held / _SHARE))
            began = time.monotonic()
            jobs = [_job(lab, f"{row.name} {number}", length) for number in (1, 2)]
            sessions = [ends.enter_context(lab.capped(argv, job, packages)) for job in jobs]
            done, counts = [], []
            for session in sessions:
                session.expect("training", _LONGEST_S)
            for session in sessions:
                counts.append(_turns_of(lab, session))
                done.append(session.expect("done", _LONGEST_S))
                session.end()
            together_s = time.monotonic() - began
        row.goes_on = True
        for one in done:
            judge_same(row, one, alone)
        ratio = together_s / (2 * alone_s)
        row.expect(lab.quick or ratio <= most, f"both took {ratio:.3f} of one after the other")
        row.details = {"alone_s": alone_s, "together_s": together_s, "held_mib": held, "turns": counts}
        row.add_note(
            f"two trainings of {held:,.0f} MiB, {_SHARE:.0%} of the room each, {steps} steps: one took {alone_s:.1f} s alone, both "
            f"together {together_s:.1f} s with turns of {length}, {ratio:.3f} of one after the other; losses and weights identical"
        )

    return judge


def _two_users(lab: Lab, row: Row) -> None:
    """Two users' trainings that do not fit together and are always busy."""
    packages = lab.need("torch")
    lab.built("bin/curb")
    steps = "50" if lab.quick else "150"
    with lab.bare(lab.python("training/suspend_train.py", "torch", "large", steps), f"{row.name} alone", packages) as session:
        session.expect("training", 180)
        held = session.held_mib()
        alone = session.expect("done", 300)
        session.end()
    with open_to_users(lab) as folder, ExitStack() as ends:
        ends.enter_context(filled(lab, row, leave_mib=held / _SHARE))
        suspend = {"turn": "2s"}
        sessions = [ends.enter_context(training_of(lab, row.name, folder, uid, steps, packages, suspend=suspend)) for uid in USERS]
        for session in sessions:
            session.expect("training", _LONGEST_S)
        time.sleep(5)
        counts = [_turns_of(lab, session) for session in sessions]
        done = []
        for session in sessions:
            done.append(session.expect("done", _LONGEST_S))
            session.end()
    row.goes_on = True
    for one in done:
        judge_same(row, one, alone)
    row.expect(all(one.get("count", 0) >= 2 for one in counts), f"they did not take turns: {counts}")
    row.details = {"held_mib": held, "turns": counts}
    row.add_note(f"users {USERS[0]} and {USERS[1]}, {held:,.0f} MiB each, {_SHARE:.0%} of the room, turns of 2s; losses and weights as alone")


def _three_programs(lab: Lab, row: Row) -> None:
    """PyTorch, JAX and TensorFlow, each with its own default, each as if it had the whole GPU."""
    lab.built("bin/curb")
    steps = "40" if lab.quick else "150"
    names = ("torch", "jax", "tensorflow")
    packages = {name: lab.need(name) for name in names}
    alone = {}
    for name in names:
        with lab.bare(lab.python("training/suspend_train.py", name, "large", steps), f"{row.name} {name} alone", packages[name]) as session:
            session.expect("training", 180)
            alone[name] = session.expect("done", 300)
            session.end()
    began = time.monotonic()
    with ExitStack() as ends:
        sessions = {
            name: ends.enter_context(
                lab.capped(lab.python("training/suspend_train.py", name, "large", steps), _job(lab, f"{row.name} {name}", "10s"), packages[name])
            )
            for name in names
        }
        held = {}
        for name, session in sessions.items():
            session.expect("training", _LONGEST_S)
            held[name] = session.held_mib()
        done = {}
        for name, session in sessions.items():
            done[name] = session.expect("done", _LONGEST_S)
            session.end()
    row.goes_on = True
    for name in names:
        judge_same(row, done[name], alone[name])
    row.details = {"held_mib": held, "took_s": time.monotonic() - began}
    row.add_note(
        f"turns of 10s; all finish after {time.monotonic() - began:.0f} s, losses and weights as alone; when they began to train they held "
        + ", ".join(f"{name} {mib:,.0f} MiB" for name, mib in held.items())
    )


def _notebook(lab: Lab, row: Row) -> None:
    """A program that is used for a moment every minute beside a training that never ends."""
    packages = lab.need("torch")
    lab.built("bin/curb")
    argv = lab.python("training/suspend_train.py", "torch", "large", "turns")
    with ExitStack() as ends:
        notebook = ends.enter_context(lab.capped(argv, _job(lab, f"{row.name} notebook", "30s"), packages))
        notebook.expect("training", 180)
        held = notebook.held_mib()
        ends.enter_context(filled(lab, row, leave_mib=held * (1 / _SHARE - 1)))
        argv = lab.python("training/suspend_train.py", "torch", "large", "0")
        training = ends.enter_context(lab.capped(argv, _job(lab, f"{row.name} training", "30s"), packages))
        training.expect("training", 180)
        firsts = []
        for _ in range(1 if lab.quick else 3):
            time.sleep(62)
            firsts.append(turn(notebook, 5)["first_s"])
        counts = _turns_of(lab, training)
        end(notebook)
        end(training)
    row.goes_on = True
    row.expect(max(firsts) <= 5, f"a call waited for {max(firsts):.2f} s")
    row.details = {"first_call_s": firsts, "held_mib": held, "turns": counts}
    row.add_note(
        f"two programs of {held:,.0f} MiB, of which one fits, with turns of 30s: the first call of the one that is used once a minute "
        f"waited {statistics.median(firsts):.2f} s, at most {max(firsts):.2f}"
    )


TURNS: dict[str, Case] = {
    "turns, two trainings, 30s": _two_trainings(30, 1.08),
    "turns, two trainings, 60s": _two_trainings(60, 1.05),
    "turns, two users": _two_users,
    "turns, three programs": _three_programs,
    "turns, a notebook beside a training": _notebook,
}
