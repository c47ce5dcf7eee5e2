#!/usr/bin/env python3
"""Memory that processes of a job share counts once, for its maker, then for a survivor: shared_memory_test.py BUILD"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from simulated import CONTEXT, MIB, PATIENCE_S, OfMachine, Process, within  # noqa: E402
from skipping import run_cases  # noqa: E402

GIB = 1024 * MIB
SLACK = (3 * 160 + 64) * MIB
"""Kept for code of up to three processes, and less than a block of the program's."""
CAP = 8 * GIB
SHARED = 1024 * MIB


class Way:
    """How two processes share memory."""

    def __init__(self, take: str, export: str, open_: str, close: str, free: str) -> None:
        self.take, self.export, self.open, self.close, self.free = take, export, open_, close, free


IPC = Way("take 1024", "export block", "open block", "close block", "drop")
HANDLE = Way("", "export handle 1024", "open handle 1024", "close handle", "close handle")
POOL = Way("", "export piece 1024", "open piece", "free piece", "free piece")
WAYS = (IPC, HANDLE, POOL)
DRIVERS = ("", "uncounted")
"""NVML's figure of the last process that has the memory counts it, or not."""
EACH = CONTEXT + 2 * MIB
"""What a process holds before it shares anything."""


class SharedMemoryTest(OfMachine):
    def cases(self, ways: tuple[Way, ...] = WAYS, drivers: tuple[str, ...] = DRIVERS) -> Iterator[Way]:
        """Each way with each driver, on a machine of its own."""
        for shared in drivers:
            for way in ways:
                super().setUp()
                self.job = f"shared-{os.getpid()}-{time.monotonic_ns()}"
                self.shared = shared
                yield way

    def run_program(self) -> Process:
        more = {"CURB_JOB": self.job, "CURB_JOB_CAP": "8GiB"} | ({"CURB_SIM_SHARED": self.shared} if self.shared else {})
        process = self.machine.run_program(self.machine.under_curb(**more))
        process.asked("take 2")
        return process

    def made(self, way: Way) -> tuple[Process, str]:
        """The maker, and the name by which others open its memory."""
        maker = self.run_program()
        if way.take:
            maker.asked(way.take)
        maker.tell(way.export)
        return maker, maker.line()

    def opens(self, process: Process, way: Way, name: str) -> None:
        process.tell(way.open)
        process.asked(name)

    def expect_held(self, process: Process, held: int) -> None:
        """What the device's books say is what the job counts: `process` can have the rest of the cap, and no more."""
        within(lambda: self.machine.used() == held)
        self.assertEqual(self.machine.used(), held)
        got, deadline = 0, time.monotonic() + PATIENCE_S
        while got <= CAP - SLACK and time.monotonic() < deadline:  # another process may have to measure itself again
            self.assertEqual(process.answer("fill again"), "filled")
            got = self.machine.used()
            self.assertEqual(process.answer("empty again"), "emptied")
            self.assertLessEqual(got, CAP)
        self.assertGreater(got, CAP - SLACK)

    def test_a_survivor_is_charged_until_it_closes(self) -> None:
        for way in self.cases():
            maker, name = self.made(way)
            user = self.run_program()
            self.opens(user, way, name)
            self.assertEqual(self.machine.used(), 2 * EACH + SHARED)
            maker.kill()
            self.expect_held(user, EACH + SHARED)
            other = self.run_program()  # in the slot that the maker had
            self.expect_held(other, 2 * EACH + SHARED)
            user.asked(way.close)
            self.expect_held(other, 2 * EACH)
            self.expect_held(user, 2 * EACH)

    def test_of_two_survivors_one_is_charged_and_then_the_other(self) -> None:
        for way in self.cases():
            maker, name = self.made(way)
            users = [self.run_program() for _ in range(2)]
            for user in users:
                self.opens(user, way, name)
            other = self.run_program()
            maker.kill()
            self.expect_held(other, 3 * EACH + SHARED)
            self.expect_held(users[0], 3 * EACH + SHARED)
            users[0].kill()
            self.expect_held(users[1], 2 * EACH + SHARED)
            self.expect_held(other, 2 * EACH + SHARED)
            users[1].kill()
            self.expect_held(other, EACH)

    def test_what_is_opened_twice_counts_once_until_both_are_closed(self) -> None:
        for way in self.cases((IPC,)):
            maker, name = self.made(way)
            user, other = self.run_program(), self.run_program()
            self.opens(user, way, name)
            self.opens(user, way, name)
            maker.kill()
            self.expect_held(other, 2 * EACH + SHARED)
            user.asked(way.close)
            self.expect_held(other, 2 * EACH + SHARED)
            user.asked(way.close)
            self.expect_held(other, 2 * EACH)

    def test_what_is_closed_before_its_maker_ends_is_free(self) -> None:
        for way in self.cases(drivers=("",)):
            maker, name = self.made(way)
            user = self.run_program()
            self.opens(user, way, name)
            user.asked(way.close)
            self.assertEqual(self.machine.used(), 2 * EACH + SHARED)
            maker.kill()
            self.expect_held(user, EACH)

    def test_what_its_maker_frees_passes_to_a_survivor_too(self) -> None:
        for way in self.cases((IPC, HANDLE)):
            maker, name = self.made(way)
            user = self.run_program()
            self.opens(user, way, name)
            maker.asked(way.free)
            if way is IPC:
                maker.asked("take 2")  # it has freed all its blocks
            self.expect_held(maker, 2 * EACH + SHARED)
            self.expect_held(user, 2 * EACH + SHARED)
            user.asked(way.close)
            self.expect_held(maker, 2 * EACH)

    def test_a_fork_of_a_survivor_changes_nothing(self) -> None:
        for way in self.cases(drivers=("",)):
            maker, name = self.made(way)
            user, other = self.run_program(), self.run_program()
            self.opens(user, way, name)
            user.asked("fork")
            child = int(user.answer("fork and stay"))
            maker.kill()
            self.expect_held(other, 2 * EACH + SHARED)
            user.kill()
            self.expect_held(other, EACH)
            os.kill(child, signal.SIGKILL)

    def test_where_memory_ends_with_its_maker_the_job_counts_it_until_it_is_closed(self) -> None:
        for way in self.cases((IPC,), ("ends",)):
            maker, name = self.made(way)
            user, other = self.run_program(), self.run_program()
            self.opens(user, way, name)
            maker.kill()
            other.answer("fill again")
            self.assertGreater(self.machine.used(), CAP - SHARED - SLACK)
            self.assertLessEqual(self.machine.used(), CAP - SHARED)
            other.answer("empty again")
            user.asked(way.close)
            self.expect_held(other, 2 * EACH)

    def test_curb_ps_counts_it_in_the_sum_of_the_job(self) -> None:
        for way in self.cases(drivers=("uncounted",)):
            maker, name = self.made(way)
            user = self.run_program()
            self.opens(user, way, name)
            maker.kill()
            self.expect_held(user, EACH + SHARED)
            table = self.machine.curb("ps").stdout
            self.assertIn(f"job tree {self.job}  {(EACH + SHARED) / GIB:.2f} GiB of 8 GiB held", table)


if __name__ == "__main__":
    run_cases()
