#!/usr/bin/env python3
"""Processes of one job under one cap: job_test.py BUILD

Programs of several threads allocate and free memory of every family at random. Meanwhile the test kills, replaces, forks
and stops them and asks for releases, for as many seconds as the matrix says. By the simulated machine's own books the job
never holds more than its cap; when all have ended, one process can allocate the whole cap. CURB_JOB_SECONDS sets the time.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from processes import BUILD, SEED, Judge, Traffic

import matrix
from simulated import MIB, PATIENCE_S, Machine

SECONDS = float(os.environ.get("CURB_JOB_SECONDS", "0")) or float(matrix.figure("job_seconds"))
CAP_MIB = 5120
PROCESSES = 4
DISTURBANCES = ("kill", "kill", "fork", "fork", "stop", "release", "quiet")
FAMILIES = "no-pools"
"""Without pools, which may exceed the cap for a moment, and code, whose size is known only once it is loaded."""


class Job(Judge):
    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.environment = {
            "CURB_JOB": f"job_test {os.getpid()} {SEED}",
            "CURB_JOB_CAP": f"{CAP_MIB}MiB",
            "CURB_SIM_HIGH": "1",
        }
        self.members: list[Traffic] = []
        self.fill_places()

    def fill_places(self) -> None:
        for _ in range(PROCESSES - len(self.members)):
            self.start()

    def start(self) -> None:
        """Starts a process, if the others leave room for its context."""
        wait = self.random.choice(("0s", "500ms"))
        file = self.machine.policy({"log": {"level": "off"}, "gpu": {"*": {"growth": {"wait": wait}}}}, f"{wait}.json")
        words = [str(self.random.randrange(1, 4)), "80", "1", str(self.random.randrange(1 << 30)), FAMILIES, "100"]
        started = Traffic(self.machine, words, self.environment | {"CURB_POLICY": str(file)})
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
            operations, wrong = one.quiet()
            self.counts["operations"] += operations
            self.expect(wrong == 0, f"{wrong} operations of {one.pid} were wrong")
            one.tell("work")
        self.counts[what] += 1
        high = self.machine.books()[0]["high"]
        self.expect(high <= CAP_MIB * MIB, f"the job held {high / MIB:.1f} MiB of {CAP_MIB} after {what}")
        self.expect(one not in self.members or one.child.poll() is None, f"{one.pid} ended with {one.child.poll()}")

    def ends(self) -> None:
        """Ends all, every second one by force. Then one process can allocate the whole cap."""
        for number, one in enumerate(self.members):
            if number % 2:
                one.kill()
            else:
                self.expect(one.ends() == 0, f"{one.pid} ended with {one.child.poll()}")
        deadline = time.monotonic() + PATIENCE_S
        while any(process["bytes"] for process in self.machine.held().values()) and time.monotonic() < deadline:
            time.sleep(0.01)
        last = self.machine.told(self.machine.under_curb(**self.environment))
        last.tell("fill")
        filled = int(last.line()) / MIB
        # The last block of 64 MiB may not fit, and curb keeps memory free for code (policy::driver_reserve).
        self.expect(CAP_MIB - 64 - 160 <= filled <= CAP_MIB, f"{filled} MiB could be had again, of {CAP_MIB}")
        last.kill()


def main() -> int:
    with Machine(BUILD) as machine:
        job = Job(machine)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until and not job.wrong:
            job.disturb()
            time.sleep(job.random.random() / 10)
        print(f"at most {machine.books()[0]['high'] / MIB:.1f} MiB of {CAP_MIB} were held at once")
        job.ends()
        return job.report("job_seconds", int(SECONDS))


if __name__ == "__main__":
    sys.exit(main())
