#!/usr/bin/env python3
"""Processes of one job under one cap: job_test.py BUILD

Programs of several threads, 4 and then 16 of them (nightly from 2 to 64), allocate and free memory of every family at random,
some under a cap that grows. Meanwhile the test kills, replaces, forks and stops them and asks for releases, for as many seconds
as the matrix says. By the simulated machine's own books the job never holds more than its cap; when all have ended, nothing is
held, and one process can allocate the whole cap. CURB_JOB_SECONDS sets the time.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from processes import BUILD, SEED, Judge, Traffic

import matrix
from simulated import MIB, Machine, within

SECONDS = float(os.environ.get("CURB_JOB_SECONDS", "0")) or float(matrix.figure("job_seconds"))
CROWDS = (4, 64 if matrix.NIGHTLY else 16)
"""So many processes first, one crowd after the other; then at random."""
CROWD_S = 10.0 if matrix.NIGHTLY else 5.0
DISTURBANCES = ("kill", "kill", "fork", "fork", "stop", "release", "quiet")
POLICIES = (
    {},
    {"wait": "500ms"},
    {"start": "700MiB", "step": "128MiB", "every": "200ms", "wait": "500ms"},
)
FAMILIES = "no-pools"
"""Without pools, which may exceed the cap for a moment, and code, whose size is known only once it is loaded."""


class Crowd:
    """A job on a machine of its own, with a cap that all of its processes meet."""

    def __init__(self, judge: Judge, machine: Machine, number: int, processes: int) -> None:
        self.judge, self.machine, self.processes = judge, machine, processes
        self.random, self.counts, self.expect = judge.random, judge.counts, judge.expect
        # Each has a context of 518 MiB, and keeps 160 MiB free for code.
        self.cap_mib = 1024 + 1024 * processes
        self.environment = {
            "CURB_JOB": f"job_test {os.getpid()} {SEED} {number}",
            "CURB_JOB_CAP": f"{self.cap_mib}MiB",
            "CURB_SIM_HIGH": "1",
        }
        self.members: list[Traffic] = []
        self.operations: dict[int, int] = {}
        self.fill_places()

    def fill_places(self) -> None:
        for _ in range(self.processes - len(self.members)):
            self.start()

    def start(self) -> None:
        """Starts a process, if the others leave room for its context."""
        which = self.random.randrange(len(POLICIES))
        gpu = {"growth": POLICIES[which]} | ({"cap": "4GiB"} if "start" in POLICIES[which] else {})
        file = self.machine.policy({"log": {"level": "off"}, "gpu": {"*": gpu}}, f"{which}.json")
        pause_us = 25 * self.processes
        words = [str(self.random.randrange(1, 4)), "80", "1", str(self.random.randrange(1 << 30)), FAMILIES, str(pause_us)]
        started = Traffic(self.machine, words, self.machine.under_curb(CURB_POLICY=str(file), **self.environment))
        if "error 2" in started.log.read_text():
            started.kill()
            self.counts["without room"] += 1
            return
        self.members.append(started)
        self.counts["processes"] += 1

    def disturb(self) -> None:
        what = self.random.choice(DISTURBANCES)
        if not self.members:
            return self.fill_places()
        one = self.random.choice(self.members)
        if what == "kill":
            one.kill()
            self.members.remove(one)
            self.fill_places()
        elif what == "fork":
            one.tell("fork")
        elif what == "stop":
            os.kill(one.pid, signal.SIGSTOP)
            time.sleep(self.random.random() / 5)
            os.kill(one.pid, signal.SIGCONT)
        elif what == "release":
            os.kill(one.pid, signal.SIGUSR1)
        elif what == "quiet":
            self.count(one)
            one.tell("work")
        self.counts[what] += 1
        self.expect_cap(what)
        self.expect(one not in self.members or one.child.poll() is None, f"{one.pid} ended with {one.child.poll()}")

    def count(self, one: Traffic) -> None:
        operations, wrong = one.quiet()
        self.counts["operations"] += operations - self.operations.get(one.pid, 0)
        self.operations[one.pid] = operations
        self.expect(wrong == 0, f"{wrong} operations of {one.pid} were wrong")

    def expect_cap(self, after: str) -> None:
        high = self.high_mib()
        self.expect(high <= self.cap_mib, f"the job held {high:.1f} MiB of {self.cap_mib} after {after}")

    def high_mib(self) -> float:
        return float(self.machine.books()[0]["high"]) / MIB

    def end(self) -> None:
        """Ends all, every second one by force. Then nothing is held, and one process can allocate the whole cap."""
        for number, one in enumerate(self.members):
            self.count(one)
            if number % 2:
                one.kill()
            else:
                self.expect(one.ends() == 0, f"{one.pid} ended with {one.child.poll()}")
        self.expect_cap("the end")
        print(f"{self.processes} processes held at most {self.high_mib():.1f} MiB of {self.cap_mib} at once", flush=True)
        self.expect(within(lambda: self.machine.used() == 0), f"{self.machine.used()} bytes are held after the end of all")
        last = self.machine.run_program(self.machine.under_curb({"log": {"level": "off"}}, **self.environment))
        last.tell("fill")
        filled = int(last.line()) / MIB
        # The last block of 64 MiB may not fit, and curb keeps memory free for code (policy::driver_reserve).
        least = self.cap_mib - 64 - 160
        self.expect(least <= filled <= self.cap_mib, f"{filled} MiB could be had again, of {self.cap_mib}")
        last.kill()


def main() -> int:
    judge = Judge()
    until = time.monotonic() + SECONDS
    number = 0
    while number < len(CROWDS) or (time.monotonic() < until and not judge.wrong):
        processes = CROWDS[number] if number < len(CROWDS) else judge.random.choice((2, 3, 4, 8, 16, 32, 64))
        with Machine(BUILD) as machine:
            crowd = Crowd(judge, machine, number, processes)
            crowd_until = time.monotonic() + CROWD_S
            while time.monotonic() < crowd_until and not judge.wrong:
                crowd.disturb()
                time.sleep(judge.random.random() / 10)
            crowd.end()
        judge.counts["crowds"] += 1
        number += 1
    return judge.report("job_seconds", int(SECONDS))


if __name__ == "__main__":
    sys.exit(main())
