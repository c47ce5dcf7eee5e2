"""curb's own moves of what it handed out: how fast they are, and that they change nothing."""

from __future__ import annotations

import json
import random
import statistics
import time
from typing import Any

from cases.nap import Checkpoints, end, turn, until_out
from cases.suspend import curb_json, judge_same
from lab import Case, Lab
from row import Row
from session import ProgramFailed, Session

_IDLE = "500ms"
_WAKES = 3
_MOVES = 1000

def _rates(lab: Lab, row: Row) -> None:
    """curb's own moves of 16 GiB in blocks of 20 MiB, the first time and later, beside the driver's checkpoint of the same. Then as
    many moves of 2 GiB as half a minute has time for, each with other words, every byte compared."""
    lab.built("bin/curb")
    large, small = (40, 10) if lab.quick else (820, 100)
    job = lab.job(row.name, "100%", suspend={"idle": "2m", "deep": "never"})  # host memory is kept for so long, and more
    rates: list[str] = []
    with lab.bare(lab.python("moving.py", str(large), "20"), f"{row.name} bare") as session:
        session.expect("ready", 60)
        driver = Checkpoints()
        out_s, back_s = driver.out(session.pid), driver.back(session.pid)
        gib = large * 20 / 1024
        rates.append(f"the driver {gib / out_s:.1f} out, {gib / back_s:.1f} back")
        session.tell("end")
        session.end()
    with lab.capped(lab.python("moving.py", str(large), "20"), job) as session:
        session.expect("ready", 60)
        for time_ in ("first", "second", "third"):
            nap, first_s, wrong = _move(lab, session)
            row.expect(wrong == 0, f"{wrong} blocks of 20 MiB changed in a move")
            out_s, back_s = nap["light"]["out_ms"] / 1e3, max(nap["light"]["back_ms"], 1) / 1e3
            row.details[time_] = {"nap": nap, "first_call_s": first_s}
            rates.append(
                f"curb, {time_} time {gib / max(out_s, 1e-3):.1f} out, {gib / back_s:.1f} back, first call {first_s:.2f} s"
            )
        session.tell("end")
        session.end()
    moves, until = 0, time.monotonic() + (3 if lab.quick else 30)
    with lab.capped(lab.python("moving.py", str(small), "20"), job) as session:
        session.expect("ready", 60)
        while moves < 1000 and time.monotonic() < until:
            session.tell("change")
            session.expect("changed", 60)
            _, _, wrong = _move(lab, session)
            moves += 1
            row.expect(wrong == 0, f"{wrong} blocks changed in move {moves}")
        session.tell("end")
        session.end()
    row.goes_on = True
    row.details["moves"] = moves
    row.add_note(f"GiB/s of {gib:.1f} GiB in blocks of 20 MiB: {'; '.join(rates)}. {moves} moves of {small * 20 / 1024:.2f} GiB, each byte right")


def _move(lab: Lab, session: Session) -> tuple[dict[str, Any], float, int]:
    """Has curb move the process out; its next call brings it back. Returns the nap's status, the seconds of that call, and how many
    blocks changed."""
    answer = curb_json(lab, "suspend", session, "--until-used")
    if answer["status"] != 0:
        raise ProgramFailed(f"curb suspend --until-used: {answer}")
    session.tell("touch")
    first_s = session.expect("touched", 120)["seconds"]
    session.tell("check")
    wrong = session.expect("checked", 120)["wrong"]
    shown = json.loads(lab.curb("ps", "--json", str(session.pid)).stdout)
    nap = next(one["status"]["nap"] for one in shown["processes"] if one["pid"] == session.pid)
    return nap, first_s, wrong

def _nap_of(lab: Lab, session: Session) -> dict[str, Any]:
    shown = json.loads(lab.curb("ps", "--json", str(session.pid)).stdout)
    return next(one["status"]["nap"] for one in shown["processes"] if one["pid"] == session.pid)


def _until_light(lab: Lab, session: Session, timeout_s: float = 60) -> dict[str, Any]:
    """Waits for a light nap. Returns its status. Raises ProgramFailed."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        nap = _nap_of(lab, session)
        if nap.get("out") and nap.get("is_light"):
            return nap
        time.sleep(0.05)
    raise ProgramFailed(f"no light nap within {timeout_s:.0f} s: {_nap_of(lab, session)}{session.tail()}")


def _first_calls(lab: Lab, row: Row) -> None:
    """The first call of a training of more than 7 GiB after a light nap, after one of both layers, and after one by the driver
    alone."""
    packages = lab.need("torch")
    lab.built("bin/curb")
    argv = lab.python("training/suspend_train.py", "torch", "large", "turns")
    ways = {
        "light": {"deep": "never"},
        "both": {"deep": "0s"},
        "the driver": {"light": False},
    }
    losses, said = [], []
    for way, suspend in ways.items():
        job = lab.job(f"{row.name} {way}", "24GiB", suspend={"idle": _IDLE, **suspend})
        firsts = []
        with lab.capped(argv, job, packages) as session:
            session.expect("training", 180)
            held = session.held_mib()
            for _ in range(2 if lab.quick else _WAKES):
                if way == "light":
                    _until_light(lab, session)
                else:
                    until_out(session)
                firsts.append(turn(session, steps=1)["first_s"])
            losses.append(end(session)["losses"])
        row.details[way] = {"held_mib": held, "first_call_s": firsts}
        said.append(f"{way} {statistics.median(firsts):.2f} s (at most {max(firsts):.2f})")
    row.goes_on = True
    row.expect(all(one == losses[0] for one in losses), "the losses differ")
    row.add_note(f"{held:,.0f} MiB, the first call after a nap: {'; '.join(said)}; losses the same")


def _preallocated(framework: str, env: dict[str, str]) -> Case:
    """A framework that takes much of the GPU before it uses it. Pages of zeros are not copied."""

    def case(lab: Lab, row: Row) -> None:
        packages = lab.need(framework)
        lab.built("bin/curb")
        job = lab.job(row.name, "100%", suspend={"idle": _IDLE, "deep": "never"})
        naps, firsts = [], []
        with lab.capped(lab.python("training/suspend_train.py", framework, "small", "turns"), job, packages | env) as session:
            session.expect("training", 240)
            held = session.held_mib()
            for _ in range(3):
                _until_light(lab, session)
                firsts.append(turn(session, steps=1)["first_s"])
                naps.append(_nap_of(lab, session))
            end(session)
        row.goes_on = True
        row.details = {"held_mib": held, "naps": naps, "first_call_s": firsts}
        moved = [f"{nap['light']['out_ms']} out and {nap['light']['back_ms']} back" for nap in naps]
        row.add_note(
            f"{held:,.0f} MiB held, {naps[-1]['light']['bytes'] / 2**20:,.0f} MiB of them not zero: {'; '.join(moved)} ms; "
            f"first call {', '.join(f'{first:.2f}' for first in firsts)} s"
        )

    return case


def _while_it_trains(lab: Lab, row: Row) -> None:
    """Moves a training between its steps, at random moments, as often as five minutes have time for."""
    packages = lab.need("torch")
    lab.built("bin/curb")
    argv = lab.python("training/suspend_train.py", "torch", "small", "turns")
    chance = random.Random(1)
    most, until = (5, 60.0) if lab.quick else (_MOVES, 300.0)
    steps = [chance.randint(1, 4) for _ in range(most)]
    job = lab.job(row.name, "2GiB", suspend={"idle": "1h", "deep": "never"})
    moves, begun = 0, time.monotonic()
    with lab.capped(argv, job, packages) as session:
        session.expect("training", 180)
        held = session.held_mib()
        while moves < most and time.monotonic() < begun + until:
            turn(session, steps[moves])
            time.sleep(chance.random() * 0.02)
            answer = curb_json(lab, "suspend", session, "--until-used")
            if answer["status"] != 0:
                raise ProgramFailed(f"curb suspend --until-used: {answer}")
            moves += 1
        turn(session, 1)
        after = session.held_mib()
        disturbed = end(session)
    with lab.bare(argv, f"{row.name} undisturbed", packages) as session:
        session.expect("training", 180)
        turn(session, sum(steps[:moves]) + 1)
        undisturbed = end(session)
    row.goes_on = True
    judge_same(row, disturbed, undisturbed)
    row.expect(abs(after - held) <= 64, f"{held:,.0f} MiB were held before the moves, {after:,.0f} after them")
    row.details = {"moves": moves, "held_mib": [held, after]}
    row.add_note(
        f"{moves} moves of a training of {held:,.0f} MiB; {len(disturbed['losses'])} losses and the weights "
        f"{'compared' if row.wrong else 'identical'}; {after:,.0f} MiB are held after them"
    )


MOVES: dict[str, Case] = {
    "moves, rates": _rates,
    "moves, first calls": _first_calls,
    "moves, jax preallocated": _preallocated("jax", {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".25"}),
    "moves, tensorflow preallocated": _preallocated("tensorflow", {}),
    "moves, while it trains": _while_it_trains,
}
