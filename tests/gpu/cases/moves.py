"""curb's own moves of what it handed out: how fast they are, and that they change nothing."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cases.nap import Checkpoints, end, turn, until_out
from cases.suspend import curb_json, filled, judge_same, status_of
from lab import PROGRAMS, Case, Lab
from measuring.mps import MpsDaemon
from row import Row
from session import ProgramFailed, Session, Unavailable

_IDLE = "500ms"
_WAKES = 3
_MOVES = 1000
USERS = (4001, 4002)
_LIGHT_WITHIN_S = 60.0


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
        session.end()
    moves, until = 0, time.monotonic() + (3 if lab.quick else 30)
    with lab.capped(lab.python("moving.py", str(small), "20"), job) as session:
        session.expect("ready", 60)
        while moves < _MOVES and time.monotonic() < until:
            session.tell("change")
            session.expect("changed", 60)
            _, _, wrong = _move(lab, session)
            moves += 1
            row.expect(wrong == 0, f"{wrong} blocks changed in move {moves}")
        session.end()
    row.goes_on = True
    row.details["moves"] = moves
    row.add_note(f"GiB/s of {gib:.1f} GiB in blocks of 20 MiB: {'; '.join(rates)}. {moves} moves of {small * 20 / 1024:.2f} GiB, each byte right")


def _leave(lab: Lab, session: Session) -> None:
    """Has curb move the process out, until its next call. Raises ProgramFailed."""
    answer = curb_json(lab, "suspend", session, "--until-used")
    if answer["status"] != 0:
        raise ProgramFailed(f"curb suspend --until-used: {answer}")


def _move(lab: Lab, session: Session) -> tuple[dict[str, Any], float, int]:
    """Has curb move the process out; its next call brings it back. Returns the nap's status, the seconds of that call, and how many
    blocks changed."""
    _leave(lab, session)
    session.tell("touch")
    first_s = session.expect("touched", 120)["seconds"]
    session.tell("check")
    wrong = session.expect("checked", 120)["wrong"]
    return _nap_of(lab, session), first_s, wrong


def _nap_of(lab: Lab, session: Session) -> dict[str, Any]:
    nap: dict[str, Any] = status_of(lab, session)["nap"]
    return nap


def _until_light(lab: Lab, session: Session) -> dict[str, Any]:
    """Waits for a light nap. Returns its status. Raises ProgramFailed."""
    deadline = time.monotonic() + _LIGHT_WITHIN_S
    while time.monotonic() < deadline:
        nap = _nap_of(lab, session)
        if nap.get("out") and nap.get("is_light"):
            return nap
        time.sleep(0.05)
    raise ProgramFailed(f"no light nap within {_LIGHT_WITHIN_S:.0f} s: {_nap_of(lab, session)}{session.tail()}")


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
            _leave(lab, session)
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


@contextmanager
def open_to_users(lab: Lab) -> Iterator[Path]:
    """A folder with the library and the programs, which every user may read. Raises Unavailable."""
    if os.geteuid() != 0:
        raise Unavailable("only root can start programs of two users")
    with tempfile.TemporaryDirectory(prefix="curb-users-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(lab.library, folder)
        shutil.copytree(PROGRAMS, folder / "programs")
        subprocess.run(["chmod", "-R", "a+rX", name], check=True)
        yield folder


def training_of(lab: Lab, name: str, folder: Path, uid: int, kind: str, packages: dict[str, str], **policy: Any) -> Session:
    """A training of PyTorch, `large KIND`, of this user, under a policy of its own in the folder of open_to_users()."""
    home = folder / str(uid)
    home.mkdir()
    job = lab.job(f"{name} {uid}", "100%", **policy)
    own = Path(shutil.copy(job.policy, home / "job.json"))
    own.write_text(own.read_text().replace(str(job.folder), str(home)))
    for path in (home, own):
        os.chown(path, uid, uid)
    env = {
        "HOME": str(home), "USER": str(uid), "LD_PRELOAD": str(folder / lab.library.name), "CURB_POLICY": str(own),
        "TMPDIR": str(home), "PYTHONPATH": f"{folder}/programs", "PYTHONDONTWRITEBYTECODE": "1", "XDG_RUNTIME_DIR": "",
    }  # fmt: skip
    argv = [
        *("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--", sys.executable),
        *(f"{folder}/programs/training/suspend_train.py", "torch", "large", kind),
    ]
    return lab.bare(argv, f"{name} {uid}", packages | env)


def _two_users(lab: Lab, row: Row) -> None:
    """Two users' PyTorch trainings that do not fit together take turns. The one leaves for the other as soon as it is idle, and the
    other is served within the two moves and 0.3 s."""
    packages = lab.need("torch")
    lab.built("bin/curb")
    sessions: list[Session] = []
    with open_to_users(lab) as folder, ExitStack() as ends:
        for uid in USERS:
            policy = {"growth": {"wait": "120s"}, "suspend": {"when_others_wait": "500ms"}}
            session = ends.enter_context(training_of(lab, row.name, folder, uid, "turns", packages, **policy))
            session.expect("training", 180)
            if not sessions:
                held = session.held_mib()
                ends.enter_context(filled(lab, row, leave_mib=held * 2 / 3))
            sessions.append(session)
        firsts, moves = [], []
        for number in range(4 if lab.quick else 10):
            time.sleep(2)  # so that the other one is idle, also by NVML's samples, of which there is one a second
            session = sessions[number % 2]
            firsts.append(turn(session, 5)["first_s"])
            other = _nap_of(lab, sessions[1 - number % 2])["light"]["out_ms"]
            moves.append((other + _nap_of(lab, session)["light"]["back_ms"]) / 1e3)
        ends_of = [end(session) for session in sessions]
    over = [first - move for first, move in zip(firsts, moves, strict=True)]
    row.goes_on = True
    row.expect(ends_of[0]["losses"] == ends_of[1]["losses"], "the losses differ")
    row.expect(max(over) <= 0.3, f"a turn took {max(over):.2f} s more than the two moves in it")
    row.details = {"held_mib": held, "first_call_s": firsts, "moves_s": moves}
    row.add_note(
        f"users {USERS[0]} and {USERS[1]}, {held:,.0f} MiB each, {len(firsts)} turns: the first call took "
        f"{statistics.median(firsts):.2f} s, at most {max(firsts):.2f}; of which the move out of the other and the one back took "
        f"{statistics.median(moves):.2f}; at most {max(over):.2f} s more than these; the losses are the same"
    )


def _long_copy(lab: Lab, row: Row) -> None:
    """A copy from pageable memory takes many times as long as a program must be idle. No nap begins in it."""
    lab.built("bin/curb")
    gib = 4 if lab.quick else 40
    job = lab.job(row.name, "100%", suspend={"idle": "100ms", "deep": "never"})
    with lab.capped(lab.python("long_copy.py", str(gib)), job) as session:
        session.expect("ready", 120)
        _until_light(lab, session)
        begin = time.monotonic()
        session.tell("copy")
        copied = session.expect("copied", 120)
        until = time.monotonic()
        begun = [entry.at for entry in job.log.entries() if "a nap begins" in entry.message]
        nap = _until_light(lab, session)
        session.tell("check")
        wrong = session.expect("checked", 120)["wrong"]
        session.end()
    row.goes_on = True
    row.expect(wrong == 0, f"{wrong} GiB of {gib} are wrong")
    row.expect(not any(begin < at < until for at in begun), "a nap began during the copy")
    row.details = {"copy_s": copied["seconds"], "nap": nap}
    row.add_note(f"{gib} GiB in one copy of {copied['seconds']:.1f} s, with an idle time of 0.1 s; each byte right, also after a nap")


def _under_mps(lab: Lab, row: Row) -> None:
    """A client of MPS, whose checkpoint the driver refuses."""
    lab.built("bin/curb")
    daemon = MpsDaemon(lab.folder_of(row.name), lab.device.index, lab.environment(None))
    if wrong := daemon.start():
        raise Unavailable(wrong)
    try:
        job = lab.job(row.name, "100%", suspend={"idle": "2m"})
        with lab.capped(lab.python("moving.py", "200", "20"), job, daemon.client) as session:
            session.expect("ready", 60)
            for _ in range(3):
                session.tell("change")
                session.expect("changed", 60)
                nap, first_s, wrong_blocks = _move(lab, session)
                row.expect(wrong_blocks == 0, f"{wrong_blocks} blocks changed in a move")
            session.end()
    finally:
        daemon.stop()
    row.goes_on = True
    row.details = {"nap": nap, "first_call_s": first_s}
    row.add_note(f"3 moves of {nap['light']['bytes'] / 2**30:.1f} GiB under MPS; each byte right; the last first call {first_s:.2f} s")


def _shared(lab: Lab, row: Row) -> None:
    """A block that another process has open stays where it is while its maker's other memory leaves, by both layers too."""
    lab.built("bin/curb")
    argv = lab.python("moving.py", "4", "512")
    with ExitStack() as ends:
        names = ("maker", "opener")
        jobs = [lab.job(f"{row.name} {name}", "100%", suspend={"idle": "2m"}) for name in names]
        maker, opener = (ends.enter_context(lab.capped(argv, job)) for job in jobs)
        for session in (maker, opener):
            session.expect("ready", 60)

        def word() -> int:
            opener.tell("see")
            return int(opener.expect("seen", 60)["word"])

        def check(when: str) -> None:
            maker.tell("check")
            wrong = maker.expect("checked", 60)["wrong"]
            row.expect(wrong == 0, f"{wrong} of the maker's blocks changed {when}")

        maker.tell("share")
        opener.tell(f"open {maker.expect('shared', 60)['handle']}")
        opener.expect("opened", 60)
        first = word()
        row.expect(first != 0, "the opened block is not as its maker wrote it")
        _leave(lab, maker)
        nap = _nap_of(lab, maker)
        row.expect(nap["light"]["bytes"] == 3 * 512 * 2**20, f"{nap['light']} left, not three blocks of 512 MiB")
        row.expect(word() == first, "the opened block changed while its maker was out")
        check("in a move")
        deep = curb_json(lab, "suspend", maker)
        row.expect(word() == first, "the opened block changed while its maker was suspended")
        back = curb_json(lab, "resume", maker)
        check("in a suspend")
        opener.tell("close")
        opener.expect("closed", 60)
        _leave(lab, maker)
        all_bytes = _nap_of(lab, maker)["light"]["bytes"]
        row.expect(all_bytes == 4 * 512 * 2**20, f"{all_bytes} bytes left after the other process had closed the block")
        check("in the last move")
        maker.end()
        opener.end()
    row.goes_on = True
    row.details = {"nap": nap, "suspend": deep, "resume": back}
    row.add_note(f"the opened block stays (\"{nap['stays']}\") and leaves once it is closed; curb suspend: {deep.get('message') or 'both layers'}")


MOVES: dict[str, Case] = {
    "moves, rates": _rates,
    "moves, first calls": _first_calls,
    "moves, jax preallocated": _preallocated("jax", {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".25"}),
    "moves, tensorflow preallocated": _preallocated("tensorflow", {}),
    "moves, while it trains": _while_it_trains,
    "moves, two users": _two_users,
    "moves, a long copy": _long_copy,
    "moves, under MPS": _under_mps,
    "moves, a shared block": _shared,
}
