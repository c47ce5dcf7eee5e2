"""Training under graph capture while releases arrive every 100 ms, captures that end otherwise than by their end, and
the threshold that a program is told while curb lowers and restores it."""

from __future__ import annotations

import time

from lab import Case, Lab, torch_allocator
from releasing import release
from row import CAP, Row

_EVERY_S = 0.1
_POOLED_MIB = 256


def capture_case(conf: str = "") -> Case:
    def case(lab: Lab, row: Row) -> None:
        lab.need("torch")
        job = lab.job(row.name, CAP)
        seconds = 2.0 if lab.quick else 6.0
        program = lab.python("capture_loop.py", str(seconds))
        with row.watching(lab.capped(program, job, torch_allocator(conf))) as session:
            session.expect("warm", 120)
            session.tell("capture")
            sent: list[float] = []
            while session.quiet() and session.running() and len(sent) < 10 * seconds / _EVERY_S:
                sent.append(session.send())
                time.sleep(_EVERY_S)
            spans = session.expect("captured", 60)["spans"]
            session.tell("compare")
            done = session.expect("done", 60)
            session.finish()
        within = sum(any(begin <= moment <= end for begin, end in spans) for moment in sent)
        releases = [message for message in job.log.messages() if message.startswith("released")]
        row.details = done | {"signals": len(sent), "signals_within_captures": within, "releases": len(releases)}
        row.details["log"] = releases[-1] if releases else None
        row.goes_on = done["close"]
        row.expect(done["close"], f"captured and eager training differ: losses {done['losses'][1:]}")
        row.expect(done["losses"][2] < done["losses"][0], "the loss did not fall: nothing was trained")
        row.expect(within > 0, "no signal fell into a capture: nothing was tested")
        row.expect(len(releases) > len(sent) / 2, f"only {len(releases)} releases for {len(sent)} signals")
        row.add_note(
            f"{done['captures']} captures, {len(sent)} signals, {within} of them within a capture, {len(releases)} releases; "
            f"weights {'identical to' if done['identical'] else 'close to'} those of {done['steps']} eager steps"
        )

    return case


def other_ends(lab: Lab, row: Row) -> None:
    """A release leaves the capture after a broken one alone, and waits for none that has gone."""
    job = lab.job(row.name, CAP)
    with row.watching(lab.capped(lab.python("captures.py"), job)) as session:
        session.expect("ready", 60)
        session.tell("forked")
        session.expect("captured")
        line = release(session, job.log).log_line
        row.expect("deferred: graph capture" in (line or ""), f"within a capture: {line}")
        session.tell("finish")
        ended = session.expect("ended")["result"]
        row.expect(ended == 0, f"a release broke the capture: {ended}")
        row.details["ended"] = ended
        for way in ("stream", "reset"):
            session.tell(way)
            session.expect("captured")
            found = release(session, job.log)
            row.details[way] = found.mib
            row.expect(found.mib >= _POOLED_MIB, f"after a capture went with its {way}: {found.mib} MiB, {found.log_line}")
        session.end()
    row.goes_on = True


def told_threshold(lab: Lab, row: Row) -> None:
    """The cap goes below what is held and above it again, so that curb lowers and restores the pools' thresholds."""
    job = lab.job(row.name, CAP)
    seconds = 10 if lab.quick else 60
    with row.watching(lab.capped(lab.python("captures.py"), job)) as session:
        session.expect("ready", 60)
        session.tell("threshold")
        session.expect("taken")
        session.tell(str(seconds))
        edits = 0
        while session.quiet() and session.running():
            job.policy.write_text(job.text("1GiB" if edits % 2 == 0 else CAP))
            edits += 1
            time.sleep(0.2)
        read = session.expect("read", seconds + 30)
        session.end()
    row.goes_on = True
    row.details = read | {"edits": edits}
    row.expect(not read["others"], f"the program was told {read['others']} for its threshold")
    row.add_note(f"{read['reads']} looks at the threshold, {edits} edits of the cap")
