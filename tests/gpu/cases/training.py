"""A real training script with and without curb: the same losses, and what it costs."""

from __future__ import annotations

import statistics
import time

from books import REPORT_ONLY, Comparison, NoBooks, compare, worst
from lab import Lab
from row import CAP, Row
from session import Event


def training(lab: Lab, row: Row) -> None:
    """Bare and capped runs in turn, so that a clock that drifts meets both."""
    lab.need("torch")
    pairs, steps = (1, 200) if lab.quick else (4, 300)
    argv = lab.python("train.py", str(steps))
    bare: list[Event] = []
    capped: list[Event] = []
    books: list[Comparison] = []
    for turn in range(pairs):
        with lab.bare(argv, f"training bare {turn}") as session:
            session.expect("training", 120)
            bare.append(session.expect("done", 120))
            session.end()
        job = lab.job(f"training capped {turn}", CAP, **REPORT_ONLY)
        with row.watching(lab.capped(argv, job)) as session:
            session.expect("training", 120)
            capped.append(session.expect("done", 120))
            try:
                books.append(compare(session, job.log))
            except NoBooks as missing:
                row.expect(False, str(missing))
            session.end()
    identical = all(run["losses"] == bare[0]["losses"] for run in bare + capped)
    losses = bare[0]["losses"]
    row.expect(all(run["losses"] == losses for run in bare), "the bare runs differ: the script is not deterministic here")
    row.expect(all(run["losses"] == losses for run in capped), "the losses differ from those without curb")
    row.expect(losses[-1] < losses[0], "the loss did not fall: nothing was trained")
    for one in books:
        row.expect(one.agrees, one.said)
    ratios = [b["steps_per_s"] / a["steps_per_s"] for a, b in zip(bare, capped, strict=True)]
    without, with_curb = (statistics.median(run["steps_per_s"] for run in runs) for runs in (bare, capped))
    row.goes_on = True
    row.details = {
        "steps": steps,
        "losses": [losses[0], losses[-1]],
        "bare_steps_per_s": [run["steps_per_s"] for run in bare],
        "capped_steps_per_s": [run["steps_per_s"] for run in capped],
        "ratio": with_curb / without,
        "ratios": ratios,
    }
    row.add_note(
        f"{steps} losses {'identical' if identical else 'DIFFERENT'}, {losses[0]:.3f} -> {losses[-1]:.3f}; "
        f"{with_curb:.1f} steps/s against {without:.1f} bare: ratio {with_curb / without:.3f} "
        f"(pairs {min(ratios):.3f} to {max(ratios):.3f})"
    )
    if furthest := worst(books):
        row.details["books"] = [one.line for one in books]
        row.add_note(f"books and device differ by {furthest.off_mib:+.1f} MiB at the most")


def training_released(lab: Lab, row: Row) -> None:
    """The same with a release every 100 ms: still the same losses. What that costs is reported."""
    lab.need("torch")
    argv = lab.python("train.py", "200")
    with lab.bare(argv, "released bare") as session:
        session.expect("training", 120)
        bare = session.expect("done", 120)
        session.end()
    job = lab.job("released capped", CAP)
    sent = 0
    with row.watching(lab.capped(argv, job)) as session:
        session.expect("training", 120)
        while session.quiet() and session.running() and sent < 1000:
            session.send()
            sent += 1
            time.sleep(0.1)
        capped = session.expect("done", 120)
        session.end()
    row.goes_on = True
    releases = sum(message.startswith("released") for message in job.log.messages())
    row.expect(releases > 0, f"no release for {sent} signals: nothing was tested")
    row.expect(capped["losses"] == bare["losses"], "the losses differ from those without curb")
    ratio = capped["steps_per_s"] / bare["steps_per_s"]
    row.details = {"signals": sent, "ratio": ratio}
    row.add_note(
        f"{sent} signals, {releases} releases, 200 losses {'identical' if not row.wrong else 'compared'}; "
        f"steps/s ratio {ratio:.3f}"
    )
