"""One process that takes samples when it is told to: a probe, or a whole program, under one subject.

It says `{"event": "ready"}` and then answers lines: "sample COUNT" by the nanoseconds of one of so many operations, and
some probes also by those of one by the driver's own functions; "finish" (programs alone) by what it has computed. Other
lines of its stdout are a framework's own and passed over.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_tests import end_all, ending, event_of


class LaneFailed(RuntimeError):
    """It ended, or did not answer in time; the text says why, in one line."""


@dataclass(frozen=True)
class Times:
    """Nanoseconds of one operation: as a program calls it, and by the driver's own functions in the same process."""

    ns: float
    direct_ns: float | None = None
    no_direct: str = ""
    """Why there is none, where there should be one."""


class Lane:
    def __init__(self, argv: list[str], env: dict[str, str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._stderr = folder / "stderr.txt"
        self._unread = b""
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                argv,
                env=env,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                start_new_session=True,
            )
        self.pid = self._process.pid
        assert self._process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def ready(self, timeout_s: float) -> None:
        self._expect("ready", timeout_s)

    def sample(self, count: int, timeout_s: float) -> Times:
        self._tell(f"sample {count}")
        said = self._expect("sample", timeout_s)
        return Times(said["ns"], said.get("direct_ns"), said.get("no_direct", ""))

    def finish(self, timeout_s: float) -> dict[str, Any]:
        self._tell("finish")
        return self._expect("finished", timeout_s)

    def close(self) -> None:
        """Ends it, by the end of its input or by force, and whatever it has started."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()
        self._selector.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            pass
        end_all(self._process)

    def _tell(self, line: str) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            raise LaneFailed(self._end()) from None

    def _expect(self, event: str, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while True:
            line, found, rest = self._unread.partition(b"\n")
            if found:
                self._unread = rest
                said = event_of(line)
                if said and said["event"] == event:
                    return said
                continue
            left = deadline - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                raise LaneFailed(f"said nothing for {timeout_s:.0f} s")
            assert self._process.stdout
            piece = os.read(self._process.stdout.fileno(), 1 << 16)
            if not piece:
                raise LaneFailed(self._end())
            self._unread += piece

    def _end(self) -> str:
        try:
            how = ending(self._process.wait(5))
        except subprocess.TimeoutExpired:
            return "its stdout is closed"
        lines = self._stderr.read_text(errors="replace").strip().splitlines()
        return f"ended with {how}" + (f": {lines[-1][:200]}" if lines else "")
