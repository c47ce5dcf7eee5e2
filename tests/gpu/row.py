"""The result of one case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from measuring.watch import MIB, Watch
from session import Session

CAP_MIB = 4096
# The most that a program may leave unused at the cap: the part that curb keeps for code (160 MiB), one unit of a pool (32 MiB)
# and one granule (2 MiB).
UNUSED_MIB = 194
CAP = f"{CAP_MIB}MiB"
GRANULE_MIB = 2


@dataclass
class Row:
    """`verdict`: pass; FAIL, with the reasons in `wrong`; info: measured, not judged; skipped, with the reason in `note`."""

    name: str
    verdict: str = "pass"
    peak_mib: float | None = None
    error: str = ""
    goes_on: bool | None = None
    released_mib: float | None = None
    released_ms: float | None = None
    note: str = ""
    wrong: list[str] = field(default_factory=list)
    sampling: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    section: list[str] = field(default_factory=list)
    """Markdown lines below the table of the page. Lines that begin with ``` are only in the JSON."""
    figures: dict[str, str] = field(default_factory=dict)
    """Pictures by name, each a file beside the page: SVG, or HTML under raw/ if the name ends with .html."""
    seconds: float = 0.0

    def expect(self, right: bool, otherwise: str) -> None:
        if not right:
            self.verdict = "FAIL"
            self.wrong.append(otherwise)

    @contextmanager
    def watching(self, session: Session, cap_mib: int | None = CAP_MIB) -> Iterator[Session]:
        """Enters the session, and judges its peak at the end even if the case fails."""
        with session:
            try:
                yield session
            finally:
                self.watched(session.watch, cap_mib)

    def watched(self, watch: Watch, cap_mib: int | None = CAP_MIB) -> None:
        """Records the peak, and judges it by the cap. `cap_mib` None: only records it."""
        peak = watch.peak / MIB
        self.peak_mib = max(self.peak_mib or 0.0, round(peak, 1))
        self.sampling = watch.sampling()
        self.expect(peak > 0, "NVML never showed the process: it was not watched")
        if cap_mib is not None:
            over = peak - cap_mib - GRANULE_MIB
            self.expect(over <= 0, f"held {peak:.0f} MiB under a cap of {cap_mib} MiB")

    def add_note(self, text: str) -> None:
        self.note = f"{self.note}; {text}" if self.note else text

    def json(self) -> dict[str, Any]:
        """Returns its fields, with only the names of the figures, which are files of their own."""
        return asdict(self) | {"figures": list(self.figures)}
