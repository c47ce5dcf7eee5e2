"""Helpers of the tests of this folder: start processes, wait for their end, and show where one hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / folder) for folder in ("common", "matrix")]
from simulated import PATIENCE_S  # noqa: E402


def stacks(pid: int) -> str:
    """Returns where each thread of a hanging process is."""
    out = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        for what in ("comm", "wchan", "syscall", "stack"):
            try:
                out.append(f"{task.name} {what}: {(task / what).read_text().strip()}")
            except OSError:
                continue
    try:
        command = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        out.append(done.stdout)
    except (OSError, subprocess.TimeoutExpired):
        pass
    return "\n".join(out)


def finish(process: subprocess.Popen[bytes], what: str, stdin: bytes | None = None) -> tuple[int, bytes, bytes]:
    """Waits for a process. Returns its status, stdout and stderr. Kills one that hangs, and raises with its stacks."""
    try:
        out, err = process.communicate(stdin, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        text = stacks(process.pid)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        raise AssertionError(f"{what} has not ended after {PATIENCE_S:g} s:\n{text}") from None
    return process.returncode, out, err


def started(command: list[Any], environment: dict[str, str], stdin: int = subprocess.PIPE, **options: Any) -> subprocess.Popen[bytes]:
    """Starts a process with pipes as its stdout and stderr."""
    return subprocess.Popen(command, env=environment, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def outcome(command: list[Any], environment: dict[str, str], what: str, **options: Any) -> tuple[int, bytes, bytes]:
    """Runs a process without input. Returns its status, stdout and stderr."""
    return finish(started(command, environment, subprocess.DEVNULL, **options), what)
