#!/usr/bin/env python3
"""Processes of one job under one cap: job_test.py BUILD

Programs of several threads, mostly 3 to 8 of them (16 once, nightly 64), allocate and free memory of every family at random.
Some have a cap that grows, some leave the GPU when they are idle, some make their first context by green ones. Meanwhile the
test kills, replaces, forks, stops and suspends them, asks for releases and sets live caps of the job, for as many seconds as
the matrix says. By the simulated machine's own books the job never holds more than its cap. After each end of a process
curb's books of the others are the machine's, and their sum is the job's. When all have ended, nothing is held, and one
process can allocate the whole cap of its policy. CURB_JOB_SECONDS sets the time, CURB_LOAD_SEED repeats a run's choices.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from processes import BUILD, SEED, Judge, Traffic

import matrix
from simulated import MIB, Machine

SECONDS = float(os.environ.get("CURB_JOB_SECONDS", "0")) or float(matrix.figure("job_seconds"))
CROWDS = (4, 64 if matrix.NIGHTLY else 16)
"""So many processes first, one crowd after the other; then at random."""
CROWD_S = 10.0 if matrix.NIGHTLY else 5.0
DISTURBANCES = ("kill", "kill", "fork", "fork", "stop", "suspend", "idle", "release", "quiet", "cap", "cap")
NAPS = {"suspend": {"idle": "300ms"}}
LIGHT = {"suspend": {"idle": "300ms", "light": True, "deep": "1s"}}
POLICIES = (
    {},
    {"gpu": {"*": {"growth": {"wait": "500ms"}}}},
    {"gpu": {"*": {"cap": "4GiB", "growth": {"start": "700MiB", "step": "128MiB", "every": "200ms", "wait": "500ms"}}}},
    NAPS,
    LIGHT,
)
FAMILIES = "no-pools"
"""Without pools, which may exceed the cap for a moment, and code, whose size is known only once it is loaded."""


class Crowd:
    """A job on a machine of its own, with a cap that all of its processes meet."""

    def __init__(self, judge: Judge, machine: Machine, number: int, processes: int) -> None:
        self.judge, self.machine, self.processes = judge, machine, processes
        self.random, self.counts, self.expect = judge.random, judge.counts, judge.expect
        # Each has a context of 518 MiB, and keeps 160 MiB free for code.
        self.cap_mib = self.most_mib = 1024 + 1024 * processes
        self.environment = {
            "CURB_JOB": f"job_test {os.getpid()} {SEED} {number}",
            "CURB_JOB_CAP": f"{self.cap_mib}MiB",
            "CURB_SIM_HIGH": "1",
        }
        # A process with managed or shared memory cannot leave the GPU. And curb, which cannot tell pieces of shared memory of
        # one size apart, may count one for its importer that another process had, and that has ended: too much.
        self.shares = number % 2 == 0
        self.live_mib = 0
        self.meets_live_cap = False
        """Once a live cap is met it holds. Before, the processes may hold more than it: it may be lower than the last one."""
        self.members: list[Traffic] = []
        self.operations: dict[int, int] = {}
        self.fill_places()

    def fill_places(self) -> None:
        for _ in range(self.processes - len(self.members)):
            self.start()

    def start(self) -> None:
        """Starts a process, if the others leave room for its context."""
        which = self.random.randrange(len(POLICIES))
        file = self.machine.policy({"log": {"level": "off"}} | POLICIES[which], f"{which}.json")
        families = FAMILIES + self.random.choice(("", ",green"))
        if not self.shares or POLICIES[which] in (NAPS, LIGHT):
            families += ",movable"
        pause_us = 25 * self.processes
        words = [str(self.random.randrange(1, 4)), "80", "1", str(self.random.randrange(1 << 30)), families, str(pause_us)]
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
            self.compare_books()
            self.fill_places()
        elif what == "fork":
            one.tell("fork")
        elif what == "stop":
            os.kill(one.pid, signal.SIGSTOP)
            time.sleep(self.random.random() / 5)
            os.kill(one.pid, signal.SIGCONT)
        elif what == "release":
            os.kill(one.pid, signal.SIGUSR1)
        elif what == "suspend":  # refused for its memory, or if it takes too long
            if self.machine.curb("suspend", one.pid).returncode == 0:
                self.expect(self.machine.curb("resume", one.pid).returncode == 0, "what was suspended does not go on")
            else:
                what = "suspend, refused"
        elif what in ("quiet", "idle"):
            self.count(one)
            if what == "idle":
                time.sleep(self.random.random())
                what = f"idle, {self.machine.held().get((one.pid, 0), {}).get('state')}"
            one.tell("work")
        elif what == "cap":
            self.set_cap(self.random.choice((0, self.cap_mib // 2, self.cap_mib * 3 // 4, self.cap_mib + 512)))
        self.counts[what] += 1
        self.expect_cap(what)
        self.expect(one not in self.members or one.child.poll() is None, f"{one.pid} ended with {one.child.poll()}")

    def set_cap(self, mib: int) -> None:
        """Sets the live cap of the job; 0: removes it."""
        size = f"{mib}MiB" if mib else "--reset"
        done = self.machine.curb("cap", "--job", f"tree {self.environment['CURB_JOB']}", size)
        self.expect(done.returncode == 0, f"curb cap --job {size} failed: {done.stderr}")
        self.most_mib = max(self.most_mib, mib)
        self.live_mib, self.meets_live_cap = mib, False

    def compare_books(self) -> None:
        """Compares curb's books of each process with the machine's, and their sum with the job's."""
        for one in self.members:
            self.count(one)
        self.judge.expect_none(self.differences)
        for one in self.members:
            one.tell("work")

    def differences(self) -> list[str]:
        books = self.machine.held()
        out: list[str] = []
        held: dict[int, int] = {}
        job = 0
        for one in self.members:
            status = one.status()
            real = books.get((one.pid, 0), {"bytes": 0, "managed": 0, "state": "gone"})
            if not status or (status.get("releasing") and real["state"] == "running"):
                return [f"{one.pid} does not answer, or releases: {real}, {status}"]
            gpu = status["gpus"][0]
            held[one.pid], job = gpu["held"], gpu["job_held"]
            if real["state"] == "running" and gpu["held"] != real["bytes"] + real["managed"]:
                out.append(f"{one.pid}: {gpu['kinds']}, and the books {real}")
            self.counts["compared"] += 1
        expected = sum(held.values())
        if self.members and (job < expected or (job > expected and not self.shares)):
            out.append(f"the job holds {job}, and its processes {held}")
        return out

    def count(self, one: Traffic) -> None:
        operations, wrong = one.quiet()
        self.counts["operations"] += operations - self.operations.get(one.pid, 0)
        self.operations[one.pid] = operations
        self.expect(wrong == 0, f"{wrong} operations of {one.pid} were wrong")

    def expect_cap(self, after: str) -> None:
        high = self.high_mib()
        self.expect(high <= self.most_mib, f"the job held {high:.1f} MiB of {self.most_mib} after {after}")
        if self.live_mib == 0:
            return
        if not self.meets_live_cap and self.members:
            job = self.members[0].status().get("gpus", [{}])[0].get("job_held", self.most_mib * MIB)
            self.meets_live_cap = job <= self.live_mib * MIB
        if self.meets_live_cap:
            used = self.machine.used() / MIB
            self.expect(used <= self.live_mib, f"the job held {used:.1f} MiB of its live cap of {self.live_mib} after {after}")
            self.counts["live caps met"] += 1

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
        print(f"{self.processes} processes held at most {self.high_mib():.1f} MiB of {self.most_mib} at once", flush=True)
        self.judge.expect_empty(self.machine, "the end of all")
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
        processes = CROWDS[number] if number < len(CROWDS) else judge.random.randrange(3, 9)
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
