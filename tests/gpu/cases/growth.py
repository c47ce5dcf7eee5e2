"""Growth: a training that is let grow step by step, and two jobs that leave a part of the device free between them."""

from __future__ import annotations

import math
import time
from itertools import pairwise

import allowance
import figure
from lab import Lab
from nvml import Device
from releasing import record, release
from row import Row
from session import Event, Job, Session
from watch import MIB, Watch

_GIB_MIB = 1024

_CAP_MIB, _START_MIB, _STEP_MIB, _EVERY_S = 8192, 2048, 1024, 5.0
_STAIRCASE = {"start": f"{_START_MIB}MiB", "step": f"{_STEP_MIB}MiB", "every": f"{_EVERY_S:g}s", "wait": "20s"}
_PIECE_MIB = 256
# With the context and the code (0.6 to 0.8 GiB) more than three steps allow, and less than four.
_PIECES, _STEPS = 19, 4
_PIECES_AGAIN = 8  # more than the start allows, and less than one step
_EARLY_S = 0.050
_HELD_BACK_S = 1.0
_SHARE_BACK = 0.9
_SHOWN_S = 1.0  # how long what was reached stands, so that it can be seen in the figure


def growth_staircase(lab: Lab, row: Row) -> None:
    """PyTorch's own allocator asks for more than is allowed yet: it is held until the next step, and never fails."""
    lab.need("torch")
    job = lab.job(row.name, f"{_CAP_MIB}MiB", _STAIRCASE)
    begin = time.monotonic()
    with lab.capped(lab.python("grow.py"), job) as session:
        try:
            ready = session.expect("ready", 60)
            session.tell(f"take {_PIECES}")
            took = session.expect("took", 60)
            time.sleep(_SHOWN_S)
            session.tell("drop")
            session.expect("dropped", 10)
            back = release(session, job.log)
            left_mib = session.watch.settle() / MIB
            session.tell(f"take {_PIECES_AGAIN}")
            again = session.expect("took", 30)
            time.sleep(_SHOWN_S)
            session.end()
        finally:
            row.watched(session.watch, _CAP_MIB)
            changes = allowance.read(job.log.entries(), _START_MIB * MIB)
            _record(row, session.watch, job, changes, begin)
    record(row, back)
    row.goes_on = took["intact"] and again["intact"]
    for said in (took, again):
        row.expect(said["refused"] == 0, f"the program saw {said['refused']} out-of-memory errors")
        row.expect(said["intact"], "memory does not hold what was written")
    row.expect(back.mib >= _SHARE_BACK * _PIECES * _PIECE_MIB, f"{back.mib:.0f} of {_PIECES * _PIECE_MIB} MiB came back")
    _judge_steps(row, job, changes, ready["first_use"])
    _judge_fall(row, job, changes, left_mib)
    _judge_held(row, session.watch, changes, begin)
    waits = [seconds for seconds in [*took["seconds"], *again["seconds"]] if seconds >= _HELD_BACK_S]
    row.details["held_back_s"] = [round(seconds, 3) for seconds in waits]
    row.add_note(
        f"start {_START_MIB:,} MiB, step {_STEP_MIB:,} MiB, at most one every {_EVERY_S:g} s; "
        f"{len(waits)} of {_PIECES + _PIECES_AGAIN} tensors were held back, {max(waits, default=0):.1f} s at the longest, "
        f"{took['refused'] + again['refused']} refused"
    )


def _release_at(job: Job) -> float | None:
    """When the release that the signal asked for had ended."""
    return next(
        (entry.at for entry in job.log.entries() if entry.message.startswith("released") and "SIGUSR1" in entry.message),
        None,
    )


def _judge_steps(row: Row, job: Job, changes: list[allowance.Change], first_use: float) -> None:
    """At most one step in every so many seconds, counted from the first use of CUDA, the last step or the release."""
    released_at = _release_at(job)
    climbs = [change.at for change in changes if not change.fell]
    before = [at for at in climbs if released_at is None or at < released_at]
    row.expect(len(before) >= _STEPS, f"{len(before)} steps before the release, {_STEPS} are needed")
    row.expect(len(climbs) > len(before), "no step after the release, though the program needed more than the start again")
    resets = sorted([first_use, *climbs, *([released_at] if released_at else [])])
    gaps = [later - earlier for earlier, later in pairwise(resets) if later in climbs]
    row.details["step_gaps_s"] = [round(gap, 3) for gap in gaps]
    shortest = min(gaps, default=_EVERY_S)
    row.expect(
        shortest >= _EVERY_S - _EARLY_S, f"a step only {shortest:.2f} s after the one before: 'every' is {_EVERY_S:g} s"
    )
    row.add_note(
        f"{len(climbs)} steps, {min(gaps, default=0):.2f} to {max(gaps, default=0):.2f} s after the step or release before"
    )


def _judge_fall(row: Row, job: Job, changes: list[allowance.Change], left_mib: float) -> None:
    """To what was held after the release, rounded up to a step, and at least the start."""
    since = (_release_at(job) or 0.0) - _EARLY_S  # the fall is a part of the release, and may be logged before its end
    fell = next((change.bytes / MIB for change in changes if change.fell and change.at >= since), None)
    row.expect(fell is not None, "the allowance did not fall back after the release")
    if fell is not None:
        due = _START_MIB + max(0, math.ceil((left_mib - _START_MIB) / _STEP_MIB)) * _STEP_MIB
        row.expect(fell == due, f"with {left_mib:,.0f} MiB held the allowance fell back to {fell:,.0f} MiB, not to {due:,}")
        row.add_note(f"back to {fell:,.0f} MiB after SIGUSR1 with {left_mib:,.0f} held")


def _judge_held(row: Row, watch: Watch, changes: list[allowance.Change], begin: float) -> None:
    allowed = allowance.series(begin, _START_MIB * MIB, changes)
    over = allowance.furthest_over_mib(watch.changes(), allowed, watch.sampling_gap_s())
    row.details["furthest_over_allowance_mib"] = round(over, 1)
    row.expect(over <= 0, f"held {over:,.1f} MiB more than was allowed at that moment")
    row.add_note(f"held stayed {-over:,.0f} MiB or more below the allowance of its moment")


def _record(row: Row, watch: Watch, job: Job, changes: list[allowance.Change], begin: float) -> None:
    """The series and the picture of it, from the moment at which the device first shows the process."""
    held = watch.changes()
    if not held:
        return
    first = held[0][0]
    # Nothing is held at last: the process has ended.
    end_s = round((held[-1][0] if held[-1][1] == 0 else time.monotonic()) - first, 3)
    allowed = allowance.series(begin, _START_MIB * MIB, changes)

    def from_first(series: allowance.Series, unit: int) -> list[tuple[float, float]]:
        return [(round(max(at - first, 0.0), 3), round(amount / unit, 3)) for at, amount in series]

    released_at = _release_at(job)
    marks = [(released_at - first, "SIGUSR1")] if released_at else []
    row.details |= {
        "held_mib": from_first(held, MIB),
        "allowance_mib": from_first(allowed, MIB),
        "released_at_s": [round(at, 3) for at, _ in marks],
    }
    title = (
        f"PyTorch under a growth policy: start {_START_MIB // _GIB_MIB} GiB, step {_STEP_MIB // _GIB_MIB} GiB "
        f"at most every {_EVERY_S:g} s, cap {_CAP_MIB // _GIB_MIB} GiB"
    )
    unit = _GIB_MIB * MIB
    row.figures["growth"] = figure.held_and_allowed(
        title, from_first(held, unit), from_first(allowed, unit), _CAP_MIB / _GIB_MIB, marks, end_s
    )


_SHARED_MIB, _JOB_CAP_MIB = 12 * _GIB_MIB, 10 * _GIB_MIB
_GRABBED_MIB = 512
_FIRST_PIECES, _SECOND_PIECES, _GIVEN_PIECES = 16, 12, 12
_HOLD_S = 3.0
_WITHIN_S = 1.0


def keep_free(lab: Lab, row: Row) -> None:
    """Two jobs that know nothing of each other, and what they must leave: the second waits until the first gives back."""
    free_mib = lab.device.free() // MIB
    keep_mib = free_mib - _SHARED_MIB
    if keep_mib <= 0:
        row.verdict = "skipped"
        row.note = f"{free_mib:,} MiB are free; more than {_SHARED_MIB:,} are needed"
        return
    growth = {"keep_free": f"{keep_mib}MiB", "wait": "30s"}
    first, second = (lab.job(f"{row.name} {which}", f"{_JOB_CAP_MIB}MiB", growth) for which in ("first", "second"))
    # A device of its own for the second watch: one buffer of processes serves one thread.
    beside = [Device(lab.device.index)]
    argv = lab.python("grab.py")
    with (
        row.watching(lab.capped(argv, first), _JOB_CAP_MIB) as holder,
        row.watching(lab.capped(argv, second, devices=beside), _JOB_CAP_MIB) as waiter,
    ):
        try:
            holder.expect("ready", 30)
            waiter.expect("ready", 30)
            with_contexts_mib = lab.device.free() / MIB
            held = _taken(row, holder, "the first job", _FIRST_PIECES)
            _must_wait(row, waiter, "the first")
            beforehand_mib = waiter.watch.held / MIB
            given, taken = _given_back(row, holder, waiter, _GIVEN_PIECES)
        finally:
            row.details["least_free_mib"] = least_mib = _least_free_mib(lab.device, holder.watch, waiter.watch)
    row.goes_on = True
    after_s = taken["end"] - given["end"]
    row.details |= {
        "keep_free_mib": keep_mib,
        "free_mib": {"at first": free_mib, "with both contexts": round(with_contexts_mib, 1)},
        "first_took_s": round(held["end"] - held["begin"], 3),
        "second_held_before_mib": round(beforehand_mib, 1),
        "second_waited_s": round(max(taken["seconds"]), 3),
        "second_done_after_s": round(after_s, 4),
    }
    row.expect(taken["end"] >= given["begin"], "the second job had its memory before the first gave any back")
    row.expect(
        after_s <= _WITHIN_S, f"the second job had its memory {after_s:.2f} s after the first gave back, not within 1 s"
    )
    row.expect(
        least_mib >= keep_mib, f"only {least_mib:,.1f} MiB were free at the worst moment, {keep_mib:,} were to be kept free"
    )
    row.add_note(
        f"{_SHARED_MIB:,} MiB between two jobs, of which the contexts took {free_mib - with_contexts_mib:,.0f}; the first "
        f"took {_FIRST_PIECES * _GRABBED_MIB:,}; the second wanted {_SECOND_PIECES * _GRABBED_MIB:,} and waited "
        f"{max(taken['seconds']):.2f} s with {beforehand_mib:,.0f} held, until the first had given "
        f"{_GIVEN_PIECES * _GRABBED_MIB:,} back: it had all of it {after_s * 1e3:.0f} ms later; the device had at least "
        f"{least_mib - keep_mib:,.1f} MiB more free than was to be kept; {held['refused'] + taken['refused']} refusals"
    )


_LEFT_MIB = 3 * _GIB_MIB


def full_device(lab: Lab, row: Row) -> None:
    """A job without curb leaves next to nothing: the driver itself has no memory, and a job with `wait` waits for it."""
    job = lab.job(f"{row.name} waiting", f"{_JOB_CAP_MIB}MiB", {"wait": "30s"})
    beside = [Device(lab.device.index)]
    argv = lab.python("grab.py")
    with (
        lab.bare(argv, f"{row.name} bare") as holder,
        row.watching(lab.capped(argv, job, devices=beside), _JOB_CAP_MIB) as waiter,
    ):
        holder.expect("ready", 30)
        waiter.expect("ready", 30)
        pieces = int(lab.device.free() / MIB - _LEFT_MIB) // _GRABBED_MIB
        held = _taken(row, holder, "the job without curb", pieces)
        _must_wait(row, waiter, "the device")
        left_mib = lab.device.free() / MIB
        given, taken = _given_back(row, holder, waiter, pieces)
    row.goes_on = True
    after_s = taken["end"] - given["end"]
    row.details |= {
        "held_by_other_mib": pieces * _GRABBED_MIB,
        "left_mib": round(left_mib, 1),
        "waited_s": round(max(taken["seconds"]), 3),
        "done_after_s": round(after_s, 4),
        "other_refused": held["refused"],
    }
    row.expect(after_s <= _WITHIN_S, f"it had its memory {after_s:.2f} s after the other gave back, not within 1 s")
    row.add_note(
        f"a job without curb held {pieces * _GRABBED_MIB:,} MiB and left {left_mib:,.0f}; the other wanted 512 more, waited "
        f"{max(taken['seconds']):.2f} s, and had all its memory {abs(after_s) * 1e3:.0f} ms "
        f"{'after' if after_s >= 0 else 'before'} the first had given back the last"
    )


def _taken(row: Row, session: Session, who: str, pieces: int) -> Event:
    session.tell(f"take {pieces} {_GRABBED_MIB}")
    taken = session.expect("taken", 40)
    row.expect(taken["refused"] == 0, f"{who} was refused {taken['refused']} times")
    return taken


def _must_wait(row: Row, waiter: Session, for_what: str) -> None:
    waiter.tell(f"take {_SECOND_PIECES} {_GRABBED_MIB}")
    waiter.watch.settle(quiet_s=0.3, timeout_s=3.0)
    time.sleep(_HOLD_S)  # how long the one is made to wait for the other, not how long for something to happen
    row.expect(waiter.quiet() and waiter.running(), f"the second job did not wait for {for_what}")


def _given_back(row: Row, holder: Session, waiter: Session, pieces: int) -> tuple[Event, Event]:
    """What both said when the one had given so many back, and the other had what it wanted."""
    holder.tell(f"give {pieces}")
    given = holder.expect("given", 30)
    taken = waiter.expect("taken", 40)
    row.expect(taken["refused"] == 0, f"the second job was refused {taken['refused']} times")
    for session in (holder, waiter):
        session.end()
    return given, taken


def _least_free_mib(device: Device, *watches: Watch) -> float:
    return round((device.total() - max(watch.peak_used for watch in watches)) / MIB, 1)
