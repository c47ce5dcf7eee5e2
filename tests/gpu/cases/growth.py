"""Growth: a training that grows step by step, and jobs that wait for the memory of another one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import pairwise

import figure
from lab import Case, Lab
from measuring import allowance
from measuring.watch import MIB
from releasing import record, release
from row import Row
from session import Event, Session, Unavailable

_GIB_MIB = 1024

_CAP_MIB, _START_MIB, _STEP_MIB, _EVERY_S = 8192, 2048, 1024, 5.0
_STAIRCASE = {"start": f"{_START_MIB}MiB", "step": f"{_STEP_MIB}MiB", "every": f"{_EVERY_S:g}s", "wait": "20s"}
_PIECE_MIB = 256
# With the context and the code (0.6 to 0.8 GiB) more than three steps allow, and less than four.
_PIECES, _STEPS = 19, 4
_PIECES_AGAIN = 8  # more than the start allows, and less than one step
_EARLY_S = 0.050
_WAITED_S = 1.0
_SHARE_BACK = 0.9
_SHOWN_S = 1.0  # keeps the memory for so long, to be visible in the figure


def _staircase(lab: Lab, row: Row) -> None:
    """PyTorch requests more than its allowance. curb makes it wait for the next step, and never refuses it."""
    lab.need("torch")
    job = lab.job(row.name, f"{_CAP_MIB}MiB", _STAIRCASE)
    begin = time.monotonic()
    with row.watching(lab.capped(lab.python("training/grow.py"), job), _CAP_MIB) as session:
        ready = session.expect("ready", 60)
        session.tell(f"take {_PIECES}")
        took = session.expect("took", 60)
        time.sleep(_SHOWN_S)
        session.tell("drop")
        session.expect("dropped", 10)
        back = release(session, job.log)
        left_mib = session.held_mib()
        session.tell(f"take {_PIECES_AGAIN}")
        again = session.expect("took", 30)
        time.sleep(_SHOWN_S)
        session.end()
    record(row, back)
    row.goes_on = took["intact"] and again["intact"]
    for said in (took, again):
        row.expect(said["refused"] == 0, f"the program saw {said['refused']} out-of-memory errors")
        row.expect(said["intact"], "the memory was overwritten")
    row.expect(back.mib >= _SHARE_BACK * _PIECES * _PIECE_MIB, f"{back.mib:.0f} of {_PIECES * _PIECE_MIB} MiB came back")
    changes = allowance.read(job.log.entries(), _START_MIB * MIB)
    released_at = next(
        (entry.at for entry in job.log.entries() if entry.message.startswith("released") and "SIGUSR1" in entry.message), begin
    )
    _judge_steps(row, changes, ready["first_use"], released_at)
    _judge_fall(row, changes, released_at, left_mib)
    _judge_held(row, session, changes, begin, released_at)
    waits = [seconds for seconds in [*took["seconds"], *again["seconds"]] if seconds >= _WAITED_S]
    row.details["waited_s"] = [round(seconds, 3) for seconds in waits]
    row.add_note(
        f"start {_START_MIB:,} MiB, step {_STEP_MIB:,} MiB, at most one every {_EVERY_S:g} s; "
        f"{len(waits)} of {_PIECES + _PIECES_AGAIN} tensors waited, {max(waits, default=0):.1f} s at the longest, "
        f"{took['refused'] + again['refused']} refused"
    )


def _judge_steps(row: Row, changes: list[allowance.Change], first_use: float, released_at: float) -> None:
    """Judges that `every` passes before each step, since the first use of CUDA, the step before or the release."""
    climbs = [change.at for change in changes if not change.fell]
    before = [at for at in climbs if at < released_at]
    row.expect(len(before) >= _STEPS, f"{len(before)} steps before the release, {_STEPS} are needed")
    row.expect(len(climbs) > len(before), "no step after the release, though the program then needed more than the start")
    resets = sorted([first_use, *climbs, released_at])
    gaps = [later - earlier for earlier, later in pairwise(resets) if later in climbs] or [0.0]
    row.details["step_gaps_s"] = [round(gap, 3) for gap in gaps]
    early = f"a step only {min(gaps):.2f} s after the one before: 'every' is {_EVERY_S:g} s"
    row.expect(min(gaps) >= _EVERY_S - _EARLY_S, early)
    row.add_note(f"{len(climbs)} steps, {min(gaps):.2f} to {max(gaps):.2f} s after the step or release before")


def _judge_fall(row: Row, changes: list[allowance.Change], released_at: float, left_mib: float) -> None:
    """Judges that the allowance fell to the start, plus the steps that the memory held after the release needs."""
    since = released_at - _EARLY_S  # the release logs the fall before its own end
    fell = next((change.bytes / MIB for change in changes if change.fell and change.at >= since), 0.0)
    due = _START_MIB + max(0, math.ceil((left_mib - _START_MIB) / _STEP_MIB)) * _STEP_MIB
    row.expect(fell == due, f"with {left_mib:,.0f} MiB held the allowance fell back to {fell:,.0f} MiB, not to {due:,}")
    row.add_note(f"the allowance fell to {fell:,.0f} MiB after SIGUSR1, with {left_mib:,.0f} held")


def _judge_held(row: Row, session: Session, changes: list[allowance.Change], begin: float, released_at: float) -> None:
    """Judges that `held` was below the allowance at every moment. Draws both, from NVML's first sample of the process."""
    held, allowed = session.watch.changes(), allowance.series(begin, _START_MIB * MIB, changes)
    over = allowance.furthest_over_mib(held, allowed, session.watch.sampling_gap_s())
    row.expect(over <= 0, f"held {over:,.1f} MiB more than the allowance at some moment")
    row.add_note(f"held was {-over:,.0f} MiB or more below the allowance at every moment")
    if not held:
        return
    first = held[0][0]
    end = held[-1][0] if held[-1][1] == 0 else time.monotonic()

    def from_first(series: allowance.Series, unit: int) -> list[tuple[float, float]]:
        return [(round(max(at - first, 0.0), 3), round(amount / unit, 3)) for at, amount in series]

    row.details |= {"held_mib": from_first(held, MIB), "allowance_mib": from_first(allowed, MIB)}
    title = (
        f"PyTorch under a growth policy: start {_START_MIB // _GIB_MIB} GiB, step {_STEP_MIB // _GIB_MIB} GiB "
        f"at most every {_EVERY_S:g} s, cap {_CAP_MIB // _GIB_MIB} GiB"
    )
    unit = _GIB_MIB * MIB
    row.figures["growth"] = figure.held_and_allowed(
        title,
        from_first(held, unit),
        from_first(allowed, unit),
        _CAP_MIB / _GIB_MIB,
        [(released_at - first, "SIGUSR1")],
        end - first,
    )


_SHARED_MIB, _JOB_CAP_MIB = 12 * _GIB_MIB, 10 * _GIB_MIB
_GRABBED_MIB = 512
_FIRST_PIECES, _SECOND_PIECES, _GIVEN_PIECES = 16, 12, 12
_LEFT_MIB = 3 * _GIB_MIB
_HOLD_S = 3.0
_WITHIN_S = 1.0


def _keep_free(lab: Lab, row: Row) -> None:
    """Two jobs must keep memory free. The second one waits until the first one frees some."""
    free_mib = lab.device.free() // MIB
    keep_mib = free_mib - _SHARED_MIB
    if keep_mib <= 0:
        raise Unavailable(f"{free_mib:,} MiB are free; more than {_SHARED_MIB:,} are needed")
    growth = {"keep_free": f"{keep_mib}MiB", "wait": "30s"}
    first, second = (lab.job(f"{row.name} {which}", f"{_JOB_CAP_MIB}MiB", growth) for which in ("first", "second"))
    holder = lab.capped(lab.python("grab.py"), first)
    waiter = lab.capped(lab.python("grab.py"), second)
    with row.watching(holder, _JOB_CAP_MIB), row.watching(waiter, _JOB_CAP_MIB):
        given, taken = _one_waits(row, holder, waiter, lambda: _FIRST_PIECES, _GIVEN_PIECES)
    least_mib = (lab.device.total() - max(session.watch.peak_used for session in (holder, waiter))) / MIB
    row.details |= {"keep_free_mib": keep_mib, "free_mib": free_mib, "least_free_mib": round(least_mib, 1)}
    row.expect(taken["end"] >= given["begin"], "the second job had its memory before the first freed any")
    kept = f"only {least_mib:,.1f} MiB were free at the worst moment, not the {keep_mib:,} of keep_free"
    row.expect(least_mib >= keep_mib, kept)
    row.add_note(
        f"{_SHARED_MIB:,} MiB for two jobs; the first took {_FIRST_PIECES * _GRABBED_MIB:,}, the second requested "
        f"{_SECOND_PIECES * _GRABBED_MIB:,}; at least {least_mib - keep_mib:,.1f} MiB more than keep_free stayed free"
    )


def _full_device(lab: Lab, row: Row) -> None:
    """A job without curb fills the device, so that the driver itself has no memory left. A job with `wait` waits for it."""
    job = lab.job(f"{row.name} waiting", f"{_JOB_CAP_MIB}MiB", {"wait": "30s"})
    holder, waiter = lab.bare(lab.python("grab.py"), f"{row.name} bare"), lab.capped(lab.python("grab.py"), job)
    with holder, row.watching(waiter, _JOB_CAP_MIB):
        _one_waits(row, holder, waiter, lambda: int(lab.device.free() / MIB - _LEFT_MIB) // _GRABBED_MIB)


def _one_waits(
    row: Row, holder: Session, waiter: Session, pieces_of: Callable[[], int], given_pieces: int | None = None
) -> tuple[Event, Event]:
    """The holder allocates memory, the waiter waits for it, and the holder frees it. Returns their last events."""
    holder.expect("ready", 30)
    waiter.expect("ready", 30)
    pieces = pieces_of()
    holder.tell(f"take {pieces} {_GRABBED_MIB}")
    refused = holder.expect("taken", 40)["refused"]
    waiter.tell(f"take {_SECOND_PIECES} {_GRABBED_MIB}")
    waiter.watch.settle(quiet_s=0.3, timeout_s=3.0)
    time.sleep(_HOLD_S)  # the time for which the waiter must wait
    row.expect(waiter.quiet() and waiter.running(), "the second job did not wait")
    before_mib = waiter.watch.held / MIB
    holder.tell(f"give {given_pieces or pieces}")
    given, taken = holder.expect("given", 30), waiter.expect("taken", 40)
    for session in (holder, waiter):
        session.end()
    row.expect(refused + taken["refused"] == 0, f"the jobs were refused {refused} and {taken['refused']} times")
    after_s = taken["end"] - given["end"]
    row.goes_on = True
    row.details |= {"held_by_first_mib": pieces * _GRABBED_MIB, "waited_s": max(taken["seconds"]), "done_after_s": after_s}
    row.expect(after_s <= _WITHIN_S, f"the second job had its memory {after_s:.2f} s after the first freed it, not within 1 s")
    row.add_note(
        f"the second waited {max(taken['seconds']):.2f} s with {before_mib:,.0f} MiB held, and had all its memory "
        f"{abs(after_s) * 1e3:.0f} ms {'after' if after_s >= 0 else 'before'} the last free of the first"
    )
    return given, taken


GROWTH: dict[str, Case] = {
    "growth staircase": _staircase,
    "keep_free, two jobs": _keep_free,
    "full device, waited for": _full_device,
}
