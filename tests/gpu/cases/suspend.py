"""`curb suspend` moves a training process to host memory, and `curb resume` moves it back. Measures both and the memory left on
the device; the weights must be the same to the last bit. A resume is refused while the device has no room.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lab import Case, Lab
from measuring.watch import MIB
from row import Row
from session import Event, Session

_CAP = "24GiB"
_LEAST_MIB = 8192
_MOST_LEFT_MIB = 16.0
_STILL_S = 2.0
_PIECE_MIB = 256
_MISSING_MIB = 2048
_STEPS = 400
_OFTEN = 100
_SMALL_CAP = "2GiB"
_LONGEST_S = 0.2


def suspend_case(framework: str, capped: bool = True) -> Case:
    def case(lab: Lab, row: Row) -> None:
        packages = lab.need(framework)
        lab.built("bin/curb")
        argv = lab.python("training/suspend_train.py", framework, "large", str(_STEPS // 2 if lab.quick else _STEPS))
        with lab.bare(argv, f"{row.name} undisturbed", packages) as session:
            session.expect("training", 180)
            undisturbed = session.expect("done", 300)
            session.end()
        started = (
            lab.capped(argv, lab.job(row.name, _CAP), packages)
            if capped
            else lab.bare(argv, row.name, {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".25"} | packages)
        )
        with started as session:
            session.expect("training", 180)
            time.sleep(1)  # until it is in the middle of its steps
            before = session.watch.held / MIB
            row.expect(before >= _LEAST_MIB, f"the program held {before:,.0f} MiB, not {_LEAST_MIB:,} or more")
            out = curb_json(lab, "suspend", session, *([] if capped else ["--force"]))
            left = session.held_mib()
            time.sleep(_STILL_S)
            row.expect(left <= _MOST_LEFT_MIB, f"{left:.0f} MiB are left on the device")
            row.expect(session.running(), "the process ended while it was suspended")
            row.expect(session.quiet(), "the process ran on while it was suspended")
            refused = _resume_into_a_full_device(lab, row, session, before)
            back = curb_json(lab, "resume", session, "--wait", "30s")
            held_again = session.held_mib()
            disturbed = session.expect("done", 300)
            session.end()
        row.goes_on = True
        row.expect(out["suspended"], f"curb suspend: {out.get('message')}")
        row.expect(back["resumed"], f"curb resume: {back.get('message')}")
        row.expect(abs(held_again - before) <= 64, f"held {before:,.0f} MiB before and {held_again:,.0f} after")
        judge_same(row, disturbed, undisturbed)
        losses = disturbed["losses"]
        row.expect(losses[-1] < losses[0], "the loss did not fall: nothing was trained")
        row.details = {"held_mib": before, "left_mib": left, "out": out, "back": back, "refusal": refused}
        row.add_note(
            f"{before:,.0f} MiB out in {out.get('seconds', 0):.1f} s (lock {out.get('lock_seconds', 0):.2f} s), "
            f"back in {back.get('seconds', 0):.1f} s; {left:.0f} MiB stayed on the device; {len(losses)} losses and "
            f"the weights {'identical' if not row.wrong else 'compared'}; the resume was refused while the device was full"
        )

    return case


def often_case(framework: str) -> Case:
    """Suspends and resumes a training many times, at random moments."""

    def case(lab: Lab, row: Row) -> None:
        packages = lab.need(framework)
        lab.built("bin/curb")
        times = _OFTEN // 10 if lab.quick else _OFTEN
        program = ("training/suspend_train.py", framework, "small")
        moments = random.Random(1)
        outs: list[dict[str, Any]] = []
        backs: list[dict[str, Any]] = []
        with lab.capped(lab.python(*program, "0"), lab.job(row.name, _SMALL_CAP), packages) as session:
            session.expect("training", 180)
            for _ in range(times):
                time.sleep(moments.uniform(0, _LONGEST_S))
                outs.append(curb_json(lab, "suspend", session))
                time.sleep(moments.uniform(0, _LONGEST_S))
                if not outs[-1]["suspended"] or not session.running():
                    break
                backs.append(curb_json(lab, "resume", session))
            ended = not session.running()
            row.expect(not ended, f"the process ended in suspend {len(outs)}")
            if not ended:
                session.tell("end")
                disturbed = session.expect("done", 60)
                session.end()
        row.details = {"outs": outs, "backs": backs}
        refused = [out.get("message") for out in outs if not out["suspended"]]
        refused += [back.get("message") for back in backs if not back["resumed"]]
        row.expect(not refused, f"suspend {len(outs)}: {refused}")
        if ended or refused:
            return
        row.goes_on = True
        argv = lab.python(*program, str(len(disturbed["losses"])))
        with lab.capped(argv, lab.job(f"{row.name} undisturbed", _SMALL_CAP), packages) as session:
            session.expect("training", 180)
            undisturbed = session.expect("done", 300)
            session.end()
        judge_same(row, disturbed, undisturbed)
        row.add_note(
            f"{len(backs)} times out ({_spread(outs)} s) and back ({_spread(backs)} s) in {len(disturbed['losses']):,} steps; "
            f"losses and weights {'differ' if row.wrong else 'identical'}"
        )

    return case


def _spread(answers: list[dict[str, Any]]) -> str:
    seconds = sorted(answer["seconds"] for answer in answers)
    return f"{seconds[len(seconds) // 2]:.2f}, at most {seconds[-1]:.2f}"


def curb_json(lab: Lab, command: str, session: Session, *options: str) -> dict[str, Any]:
    """Runs a command of curb on the process. Returns its answer, with its exit status as `status` and its time as `whole_s`."""
    start = time.monotonic()
    done = lab.curb(command, "--json", *options, str(session.pid), timeout_s=300)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)[0]
    except ValueError:
        raise RuntimeError(f"curb {command} answered {done.stdout[:200]!r}, {done.stderr[-500:]!r}") from None
    return answer | {"status": done.returncode, "whole_s": round(time.monotonic() - start, 2)}


def status_of(lab: Lab, session: Session) -> dict[str, Any]:
    """Returns the status in `curb ps --json PID`; empty if the process does not answer."""
    shown = json.loads(lab.curb("ps", "--json", str(session.pid)).stdout)
    return next((one["status"] for one in shown["processes"] if one["pid"] == session.pid), None) or {}


@contextmanager
def filled(lab: Lab, row: Row, leave_mib: float) -> Iterator[float]:
    """Another program fills the device except for about `leave_mib`. Yields the MiB that are then free."""
    with lab.bare(lab.python("grab.py"), f"{row.name} filler") as filler:
        filler.expect("ready", 60)
        filler.tell(f"take {int((lab.device.free() / MIB - leave_mib) // _PIECE_MIB)} {_PIECE_MIB}")
        row.expect(not filler.expect("taken", 60)["refused"], "the device could not be filled")
        yield lab.device.free() / MIB
        filler.end()


def judge_same(row: Row, disturbed: Event, undisturbed: Event) -> None:
    """Judges that both runs have the same losses and weights."""
    for what in ("losses", "digest"):
        row.expect(disturbed[what] == undisturbed[what], f"the {what} differ from the undisturbed run's")


def _resume_into_a_full_device(lab: Lab, row: Row, session: Session, need_mib: float) -> str:
    """Tries to resume while another program fills the device. Returns the text of the refusal."""
    with filled(lab, row, need_mib - _MISSING_MIB):
        refused = curb_json(lab, "resume", session)
    row.expect(refused["status"] == 1 and not refused["resumed"], "a resume into a full device was not refused")
    row.expect("missing" in refused.get("message", ""), f"the refusal does not name the missing memory: {refused}")
    return str(refused.get("message", ""))


SUSPEND: dict[str, Case] = {
    "suspend, torch": suspend_case("torch"),
    "suspend, jax": suspend_case("jax"),
    "suspend, tensorflow": suspend_case("tensorflow"),
    "suspend, torch without curb in it": suspend_case("torch", capped=False),
    "suspend often, torch": often_case("torch"),
    "suspend often, jax": often_case("jax"),
    "suspend often, tensorflow": often_case("tensorflow"),
}
