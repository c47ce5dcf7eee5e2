"""A training script with and without curb: it has the same losses; measures the cost of curb."""

from __future__ import annotations

import statistics

from lab import Case, Lab
from measuring.books import REPORT_ONLY, Comparison, NoBooks, compare, worst
from row import CAP, Row
from session import Event, Session

_RELEASE_EVERY_S = 0.1


def trained(session: Session) -> Event:
    """Returns the result of train.py, which then waits with all its memory."""
    session.expect("training", 120)
    return session.expect("done", 120)


def judge_losses(row: Row, runs: list[Event]) -> str:
    """Judges that all runs have the same losses, and that these fall. Returns "identical" or "DIFFERENT"."""
    losses = runs[0]["losses"]
    same = all(run["losses"] == losses for run in runs)
    row.expect(same, "the losses of the runs differ")
    row.expect(losses[-1] < losses[0], f"the loss did not fall ({losses[0]:.4g} -> {losses[-1]:.4g}): nothing was trained")
    return "identical" if same else "DIFFERENT"


def note_ratio(row: Row, bare: list[float], other: list[float]) -> None:
    """Adds a note with the ratio of steps per second."""
    ratios = [b / a for a, b in zip(bare, other, strict=True)]
    row.details |= {"ratio": statistics.median(ratios), "ratios": ratios}
    row.add_note(
        f"{statistics.median(other):.1f} steps/s against {statistics.median(bare):.1f}: "
        f"ratio {statistics.median(ratios):.3f} (pairs {min(ratios):.3f} to {max(ratios):.3f})"
    )


def _training(lab: Lab, row: Row) -> None:
    """Bare and capped runs alternate, so that a drifting clock affects both."""
    lab.need("torch")
    pairs, steps = (1, 200) if lab.quick else (4, 300)
    argv = lab.python("training/train.py", str(steps))
    bare: list[Event] = []
    capped: list[Event] = []
    books: list[Comparison] = []
    for turn in range(pairs):
        with lab.bare(argv, f"training bare {turn}") as session:
            bare.append(trained(session))
            session.end()
        job = lab.job(f"training capped {turn}", CAP, **REPORT_ONLY)
        with row.watching(lab.capped(argv, job)) as session:
            capped.append(trained(session))
            try:
                books.append(compare(session, job.log))
                row.expect(books[-1].agrees, books[-1].text)
            except NoBooks as missing:
                row.expect(False, str(missing))
            session.end()
    row.goes_on = True
    row.add_note(f"{steps} losses {judge_losses(row, bare + capped)}")
    note_ratio(row, [run["steps_per_s"] for run in bare], [run["steps_per_s"] for run in capped])
    if furthest := worst(books):
        row.details["books"] = [one.line for one in books]
        row.add_note(f"books and device differ by at most {furthest.off_mib:+.1f} MiB")


def _training_released(lab: Lab, row: Row) -> None:
    lab.need("torch")
    argv = lab.python("training/train.py", "200")
    with lab.bare(argv, "released bare") as session:
        bare = trained(session)
        session.end()
    job = lab.job("released capped", CAP)
    with row.watching(lab.capped(argv, job)) as session:
        session.expect("training", 120)
        sent = session.send_every(_RELEASE_EVERY_S, most=1000)
        capped = session.expect("done", 120)
        session.end()
    row.goes_on = True
    releases = sum(message.startswith("released") for message in job.log.messages())
    row.expect(releases > 0, f"no release for {len(sent)} signals: nothing was tested")
    row.add_note(f"{len(sent)} signals, {releases} releases, 200 losses {judge_losses(row, [bare, capped])}")
    note_ratio(row, [bare["steps_per_s"]], [capped["steps_per_s"]])


TRAINING: dict[str, Case] = {"training": _training, "training, SIGUSR1 every 100 ms": _training_released}
