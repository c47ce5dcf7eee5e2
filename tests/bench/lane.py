"""A lane: one process under one subject that takes samples on request. It is a probe or a whole program.

It prints the event "ready", then answers commands. "sample COUNT" makes so many operations and returns the nanoseconds of one;
some probes add the nanoseconds of one by the driver's own functions. "finish" (programs only) returns the losses.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from gpu_tests import Program, end_all


@dataclass(frozen=True)
class Times:
    """Nanoseconds of one operation: by the functions that a program finds, and by the driver's own in the same process."""

    ns: float
    direct_ns: float | None = None
    no_direct: str = ""
    """The reason why a probe that measures `direct_ns` could not."""


class Lane(Program):
    def ready(self, timeout_s: float) -> None:
        self.expect("ready", timeout_s)

    def sample(self, count: int, timeout_s: float) -> Times:
        self.tell(f"sample {count}")
        said = self.expect("sample", timeout_s)
        return Times(said["ns"], said.get("direct_ns"), said.get("no_direct", ""))

    def finish(self, timeout_s: float) -> list[float]:
        """Returns the losses of all steps."""
        self.tell("finish")
        losses: list[float] = self.expect("finished", timeout_s)["losses"]
        return losses

    def close(self) -> None:
        """Closes its stdin. If it does not end within 2 s, kills it and its descendants; in any case the rest of its process
        group."""
        assert self._process.stdin
        try:
            self._process.stdin.close()
            self._process.wait(2)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass
        end_all(self._process)

    def tail(self) -> str:
        """Returns the last line of its stderr, for a remark."""
        lines = self._stderr.read_text(errors="replace").strip().splitlines()
        return f": {lines[-1][:200]}" if lines else ""
