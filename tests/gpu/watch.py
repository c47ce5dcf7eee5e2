"""Watches from outside what a process and its descendants hold of the GPU.

The point of watching from outside is that neither the program nor curb can be wrong about it. A thread asks NVML every
2 ms; the driver itself can keep it waiting (while a context is made, say), so the gaps between samples are recorded and
reported beside the peak.
"""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path

from nvml import Device, NvmlError

MIB = 2**20
_INTERVAL_S = 0.002
_LATE_S = 0.005


class Watch:
    """Samples while it is entered. `held`, `peak` in bytes; times are time.monotonic()'s, which all processes share."""

    def __init__(self, device: Device, root_pid: int) -> None:
        self._device = device
        self._root = root_pid
        self._ours: dict[int, bool] = {root_pid: True}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="watch", daemon=True)
        self._gaps: list[float] = []
        self._changes: list[tuple[float, int]] = []
        self._trouble = ""
        self.held = 0
        self.peak = 0

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def last_change_since(self, moment: float) -> float | None:
        """When the held amount last changed after `moment`; None: it did not."""
        when, _ = self._changes[-1] if self._changes else (moment, 0)
        return when if when > moment else None

    def settle(self, quiet_s: float = 0.1, timeout_s: float = 2.0) -> int:
        """Waits until nothing has changed for so long, and returns what is held then."""
        start = now = time.monotonic()
        while now - start < timeout_s and now - (self.last_change_since(start) or start) < quiet_s:
            time.sleep(quiet_s / 5)
            now = time.monotonic()
        return self.held

    def sampling(self) -> dict[str, float | int | str]:
        """How closely it was watched, for the report."""
        gaps = self._gaps or [0.0]
        return {
            "samples": len(self._gaps),
            "median_ms": round(statistics.median(gaps) * 1e3, 2),
            "worst_ms": round(max(gaps) * 1e3, 2),
            "later_than_5_ms": sum(gap > _LATE_S for gap in gaps),
            **({"trouble": self._trouble} if self._trouble else {}),
        }

    def _sample(self) -> None:
        last = time.monotonic()
        while not self._stop.is_set():
            try:
                held = sum(used for pid, used in self._device.held().items() if self._is_ours(pid))
            except NvmlError as error:
                self._trouble = str(error)
                held = self.held
            now = time.monotonic()
            self._gaps.append(now - last)
            if held != self.held:
                self._changes.append((now, held))
                self.held = held
                self.peak = max(self.peak, held)
            last = now
            time.sleep(max(0.0005, _INTERVAL_S - (time.monotonic() - now)))

    def _is_ours(self, pid: int) -> bool:
        """Whether `pid` is the watched process or descends from it. Only looked up the first time that NVML names it."""
        if pid not in self._ours:
            parent = _parent(pid)
            self._ours[pid] = parent > 1 and self._is_ours(parent)
        return self._ours[pid]


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat[stat.rindex(")") + 1 :].split()[1])
