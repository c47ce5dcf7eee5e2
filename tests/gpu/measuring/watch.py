"""Samples by NVML what a process and its descendants hold of the GPU. An error of the program or of curb cannot change these
figures.

A thread asks NVML every 2 ms, for each device in turn. The driver can delay the answer (while it creates a context, for example),
so the results have the gaps between samples beside the peak.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from measuring.nvml import Device, NvmlError

MIB = 2**20
_INTERVAL_S = 0.002
_LATE_S = 0.005


class Watch:
    """Samples while it is entered. Times are time.monotonic()'s, which all processes share.

    held, peak           bytes held now, and the most so far: sums over the devices and the processes
    held_on[index]       bytes held of a device, by NVML's index
    most_on[index]       the most that the processes together held of a device so far
    peak_of[pid, index]  the most that a process held of a device
    peak_used            the most that all processes of the machine used of the first device
    used_before          the bytes that they used before the program started
    """

    def __init__(self, devices: Sequence[Device], root_pid: int, used_before: int) -> None:
        self._devices = devices
        self._ours: dict[int, bool] = {root_pid: True}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="watch", daemon=True)
        self._gaps: list[float] = []
        self._changes: list[tuple[float, int]] = []
        self._trouble = ""
        self.held = 0
        self.peak = 0
        self.held_on: dict[int, int] = {}
        self.most_on: dict[int, int] = {}
        self.peak_of: dict[tuple[int, int], int] = {}
        self.used_before = self.peak_used = used_before

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def changes(self) -> list[tuple[float, int]]:
        """Returns the moments at which `held` changed, with the new amounts."""
        return list(self._changes)

    def last_change_since(self, moment: float) -> float | None:
        """Returns the moment of the last change of `held` after `moment`. None: there was none."""
        when, _ = self._changes[-1] if self._changes else (moment, 0)
        return when if when > moment else None

    def settle(self, quiet_s: float = 0.1, timeout_s: float = 2.0) -> int:
        """Waits until `held` has not changed for `quiet_s`, at most `timeout_s`. Returns it."""
        start = now = time.monotonic()
        while now - start < timeout_s and now - (self.last_change_since(start) or start) < quiet_s:
            time.sleep(quiet_s / 5)
            now = time.monotonic()
        return self.held

    def falls_to(self, mib: float, timeout_s: float) -> float | None:
        """Waits until at most so much is held. Returns the moment. None: not in time."""
        deadline = time.monotonic() + timeout_s
        while (now := time.monotonic()) < deadline:
            if self.held <= mib * MIB:
                return now
            time.sleep(_INTERVAL_S)
        return None

    def peak_on(self, index: int) -> int:
        """Returns the most that any one of the processes held of that device."""
        return max((peak for (_, where), peak in self.peak_of.items() if where == index), default=0)

    def sampling_gap_s(self) -> float:
        """Returns the longest time between two samples."""
        return max(self._gaps, default=0.0)

    def sampling(self) -> dict[str, float | int | str]:
        """Returns figures on the gaps between samples, for the report."""
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
                held = sum(map(self._held_of, self._devices))
                self.peak_used = max(self.peak_used, self._devices[0].used())
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

    def _held_of(self, device: Device) -> int:
        ours = {pid: used for pid, used in device.held().items() if self._is_ours(pid)}
        for pid, used in ours.items():
            key = (pid, device.index)
            self.peak_of[key] = max(self.peak_of.get(key, 0), used)
        held = self.held_on[device.index] = sum(ours.values())
        self.most_on[device.index] = max(self.most_on.get(device.index, 0), held)
        return held

    def _is_ours(self, pid: int) -> bool:
        """Returns true if `pid` is the watched process or a descendant of it. Reads /proc once for each pid."""
        if pid not in self._ours:
            parent = parent_of(pid)
            self._ours[pid] = parent > 1 and self._is_ours(parent)
        return self._ours[pid]


def parent_of(pid: int) -> int:
    """Returns the parent's pid. 0: there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat[stat.rindex(")") + 1 :].split()[1])
