"""Waits for child processes, for a limited time."""

from __future__ import annotations

import os
import time

LIMIT_S = 60.0


def status_of(pid: int) -> int | str:
    """Returns the child's exit status. Kills it if it does not end within LIMIT_S, and returns "hangs"."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "hangs"
