"""What reaches a running process: an edited policy, and its own signal handlers beside curb's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from lab import Case, Lab
from row import Row
from session import Job, Session

_WITHIN_MS = 1000.0
_PIECE_MIB = 2048
_LOW, _HIGH = "1GiB", "4GiB"


def live_edit(lab: Lab, row: Row) -> None:
    """Raises the cap as an editor does (a new file renamed over the old), breaks the file, lowers the cap in place."""
    job = lab.job(row.name, _LOW)
    with row.watching(lab.capped(lab.python("live_edit.py"), job)) as session:
        ready = session.expect("ready", 30)
        row.expect(ready["total_mib"] == 1024, f"the program is told {ready['total_mib']} MiB at a cap of 1024")
        row.expect(not _now(session), "2 GiB were granted under a cap of 1 GiB")
        raised = _until(session, "granted", lambda: _rename_over(job, job.text(_HIGH)), row)
        job.policy.write_text(job.text(_LOW)[:-20])
        complaint = job.log.wait_for("policy stays in force", 0, 2.0)
        row.expect(complaint is not None, "a broken policy file was not reported within 2 s")
        row.expect(_now(session), "a broken policy file took the last good one out of force")
        lowered = _until(session, "refused", lambda: job.policy.write_text(job.text(_LOW)), row)
        raised_again = _until(session, "granted", lambda: job.policy.write_text(job.text(_HIGH)), row)
        session.end()
    row.goes_on = True
    row.details = {"raised_ms": raised, "lowered_ms": lowered, "raised_again_ms": raised_again}
    row.add_note(
        f"in force after {raised:.0f} ms (raised, renamed over), {lowered:.0f} ms (lowered, in place), "
        f"{raised_again:.0f} ms (raised, in place); broken file reported, last good policy kept"
    )


def _now(session: Session) -> bool:
    session.tell(f"now {_PIECE_MIB}")
    return bool(session.expect("answer", 10)["granted"])


def _until(session: Session, answer: str, edit: Callable[[], object], row: Row) -> float:
    """Milliseconds from the edit to the first answer of that kind."""
    session.tell(f"{answer} {_PIECE_MIB}")
    time.sleep(0.05)
    edited = time.monotonic()
    edit()
    said = session.expect("answer", 10)
    row.expect(said["granted"] == (answer == "granted"), f"2 GiB are still not {answer} 5 s after the edit")
    ms: float = round((said["at"] - edited) * 1e3, 1)
    row.expect(0 <= ms <= _WITHIN_MS, f"the edit took effect after {ms:.0f} ms, not within 1 s")
    return ms


def _rename_over(job: Job, text: str) -> None:
    new = job.policy.with_suffix(".new")
    new.write_text(text)
    os.replace(new, job.policy)


def handler_case(kind: str, moment: str) -> Case:
    """Two signals: the program's handler is called for each, and curb releases for each too."""

    def case(lab: Lab, row: Row) -> None:
        job = lab.job(row.name, "1GiB")
        with row.watching(lab.capped(lab.python("handlers.py", kind, moment), job), 1024) as session:
            session.expect("ready", 30)
            for turn in range(2):
                seen = len(job.log.messages())
                session.send()
                line = job.log.wait_for("released", seen, 5.0)
                row.expect(line is not None, f"curb did not release on signal {turn + 1}")
            session.tell("count")
            done = session.expect("done", 10)
            session.finish()
        row.goes_on = done["allocated"]
        row.details = done
        row.expect(done["calls"] >= 2, f"the program's handler ran {done['calls']} times for 2 signals")
        row.expect(done["still_registered"], "Python no longer knows its own handler")
        row.add_note(f"called for {min(done['calls'], 2)} of 2 signals")

    return case
