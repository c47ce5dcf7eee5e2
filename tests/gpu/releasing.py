"""Sends the release signal, and measures by NVML how much the process gives back, and how fast."""

from __future__ import annotations

from dataclasses import dataclass

from measuring.watch import MIB
from row import Row
from session import Log, Session

_LOG_TIMEOUT_S = 10.0


@dataclass
class Release:
    mib: float
    """By how much NVML's figure for the process fell."""
    ms: float | None
    """From the signal until NVML showed the last change. None: nothing came back."""
    log_line: str | None
    """curb's log line on the release. None: there was none."""


def record(row: Row, back: Release) -> None:
    row.released_mib, row.released_ms = back.mib, back.ms
    row.details["log"] = back.log_line
    row.expect(back.log_line is not None, "curb logged no release after SIGUSR1")


def release(session: Session, log: Log) -> Release:
    before = session.watch.settle()
    seen = len(log.messages())
    sent = session.send()
    line = log.wait_for("released", seen, _LOG_TIMEOUT_S)
    after = session.watch.settle()
    changed = session.watch.last_change_since(sent)
    freed = before - after
    came_back = freed > 0 and changed is not None
    return Release(
        mib=round(freed / MIB, 1),
        ms=round((changed - sent) * 1e3, 1) if came_back and changed is not None else None,
        log_line=line,
    )
