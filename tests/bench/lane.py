"""One process that takes samples on request: a probe, or a whole program, under one subject.

It prints the event "ready" and then answers commands: "sample COUNT" by the nanoseconds of one of so many operations, and some
probes also by those of one by the driver's own functions; "finish" (programs alone) by what it has computed.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from gpu_tests import Program, end_all


@dataclass(frozen=True)
class Times:
    """Nanoseconds of one operation: as a program calls it, and by the driver's own functions in the same process."""

    ns: float
    direct_ns: float | None = None
    no_direct: str = ""
    """Why `direct_ns` is missing, where it is expected."""


class Lane(Program):
    def ready(self, timeout_s: float) -> None:
        self.expect("ready", timeout_s)

    def sample(self, count: int, timeout_s: float) -> Times:
        self.tell(f"sample {count}")
        said = self.expect("sample", timeout_s)
        return Times(said["ns"], said.get("direct_ns"), said.get("no_direct", ""))

    def finish(self, timeout_s: float) -> list[float]:
        """The losses."""
        self.tell("finish")
        losses: list[float] = self.expect("finished", timeout_s)["losses"]
        return losses

    def close(self) -> None:
        """Ends it, by the end of its input or by force, and every process that it started."""
        assert self._process.stdin
        try:
            self._process.stdin.close()
            self._process.wait(2)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass
        end_all(self._process)

    def tail(self) -> str:
        """One line, for a remark."""
        lines = self._stderr.read_text(errors="replace").strip().splitlines()
        return f": {lines[-1][:200]}" if lines else ""
