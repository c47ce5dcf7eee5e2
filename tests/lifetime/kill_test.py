#!/usr/bin/env python3
"""kill -9 at random moments: kill_test.py BUILD

8 processes at a time use one simulated device, with caps, caches, traces and logs. The test kills them at any moment: while
they start, make contexts, allocate, release, read a new policy, or answer curb. The next process must find a clean device.
Processes that start and commands that ask delete the sockets of the dead. A trace ends with at most a part of a line.
CURB_LIFETIME_SEED repeats a run's random numbers.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from lifetime import finish, started

import matrix
from simulated import CONTEXT, MIB, PATIENCE_S, Machine, within

BUILD = Path(sys.argv[1]).resolve()
PROGRAM = BUILD / "tests/kill_program"
COUNT = matrix.figure("kills")
SEED = int(os.environ.get("CURB_LIFETIME_SEED", str(time.time_ns() % 1_000_000)))
AT_ONCE = 8
START_S = 0.03
"""Longer than a start on an idle machine. Kills of starting processes are spread over this time."""


class Kills:
    def __init__(self, machine: Machine) -> None:
        self.machine, self.random = machine, random.Random(SEED)
        self.environment = machine.under_curb(CURB_POLICY=str(self.write_policy()))
        self.killed = self.before_ready = self.signals = self.questions = self.traces = self.reaped = 0
        self.living: list[tuple[subprocess.Popen[bytes], float]] = []

    def write_policy(self) -> Path:
        cap = self.random.randrange(700, 1600)
        policy = {
            "gpu": {"*": {"cap": f"{cap}MiB", "cache": {"max": "64MiB"}, "growth": {"start": "600MiB", "step": "100MiB"}}},
            "log": {"level": "info", "file": str(self.machine.folder / "log-%p")},
            "trace": {"file": str(self.machine.folder / "trace-%p")},
        }
        return self.machine.policy(policy)

    def start(self) -> None:
        process = subprocess.Popen(
            [PROGRAM], env=self.environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        # Mostly early: on an idle machine a start takes a few milliseconds.
        moment = time.monotonic() + self.random.random() ** 3 * START_S
        self.living.append((process, moment))

    @staticmethod
    def work(process: subprocess.Popen[bytes]) -> None:
        assert process.stdin
        process.stdin.write(b"w")
        process.stdin.flush()

    @staticmethod
    def close(process: subprocess.Popen[bytes]) -> None:
        assert process.stdin and process.stdout
        process.stdin.close()
        process.stdout.close()

    def kill_one(self) -> None:
        starting = self.random.random() < 0.4
        process, moment = self.living.pop(-1 if starting else 0)
        if starting:
            time.sleep(max(0.0, moment - time.monotonic()))
        else:  # once it works
            assert process.stdout
            assert select.select([process.stdout], [], [], PATIENCE_S)[0], "it does not start"
            others = self.random.sample(self.living, 3)
            for each in (process, *(one for one, _ in others)):
                self.work(each)
            time.sleep(self.random.random() * 0.005)
        ready = bool(process.stdout and select.select([process.stdout], [], [], 0)[0])
        if ready and self.random.random() < 0.3:
            os.kill(process.pid, signal.SIGUSR1)
            self.signals += 1
        process.kill()
        status = process.wait(PATIENCE_S)
        assert status == -signal.SIGKILL, f"it had ended before, with {status}"
        self.close(process)
        self.killed += 1
        self.before_ready += not ready
        self.check_trace(process.pid)

    def check_trace(self, pid: int) -> None:
        """The trace has whole lines, and at most a part of one. Deletes it and the log, which curb leaves to the user."""
        trace = self.machine.folder / f"trace-{pid}"
        try:
            lines = trace.read_bytes().split(b"\n")
        except FileNotFoundError:
            lines = []
        for line in lines[1:-1][-20:]:
            json.loads(line.rstrip(b","))
        self.traces += bool(lines)
        for name in ("trace", "log"):
            (self.machine.folder / f"{name}-{pid}").unlink(missing_ok=True)

    def ask(self) -> None:
        """Runs curb ps, while processes may die."""
        done = self.machine.curb("ps", "--json")
        assert done.returncode == 0, (done.returncode, done.stderr)
        json.loads(done.stdout)
        self.questions += 1

    def kill_all(self) -> None:
        for process, _ in self.living:
            process.kill()
            process.wait(PATIENCE_S)
            self.close(process)
            self.check_trace(process.pid)
            self.killed += process.returncode == -signal.SIGKILL
        self.living.clear()

    def check(self) -> None:
        """Kills all. The next process must start clean."""
        self.kill_all()
        left = self.machine.sockets()
        self.make_old(left)
        process = started([PROGRAM, "probe"], self.machine.under_curb())
        assert process.stdout
        shown = process.stdout.readline().strip()
        books = self.machine.books()[0]
        assert shown == str(CONTEXT + 64 * MIB).encode(), f"the next process sees {shown!r} in use"
        assert [one["pid"] for one in books["processes"]] == [process.pid], f"the dead still hold memory: {books}"
        assert books["used"] == CONTEXT + 64 * MIB, f"the device is not as it was: {books}"
        own = f"{process.pid}-"

        def dead() -> list[str]:
            return [name for name in self.machine.sockets() if not name.startswith(own)]

        # A process that starts deletes up to 32 dead sockets; curb ps deletes the rest.
        assert within(lambda: len(dead()) <= max(0, len(left) - 32)), f"sockets of the dead are left: {dead()}"
        self.reaped += len(left) - len(dead())
        if dead():
            self.ask()
        assert all(name.startswith(own) for name in self.machine.sockets()), self.machine.sockets()
        status, out, err = finish(process, "the next process", b"")
        assert (status, out, err) == (0, b"", b""), (status, out, err)
        assert not self.machine.sockets(), self.machine.sockets()
        assert self.machine.used() == 0

    def make_old(self, left: list[str]) -> None:
        """Ages unfinished sockets: curb deletes them only after a minute."""
        for name in left:
            if name.endswith(".new"):
                os.utime(self.machine.runtime / "curb" / name, (1, 1))


def main() -> None:
    with Machine(BUILD) as machine:
        kills = Kills(machine)
        while kills.killed < COUNT:
            for number in range(100):
                while len(kills.living) < AT_ONCE:
                    kills.start()
                kills.kill_one()
                if number % 5 == 0:
                    kills.write_policy()
                if number % 33 == 0:
                    kills.ask()
            kills.check()
        left = sorted(set(os.listdir(machine.folder)) - {"machine", "runtime", "job.json"})
        assert not left, f"left behind: {left}"
        print(
            f"seed {SEED}: {kills.killed} killed, {kills.before_ready} of them before they had initialised; {kills.signals} releases, "
            f"{kills.questions} questions, {kills.traces} traces, {kills.reaped} sockets deleted by the next process"
        )
        assert kills.traces > COUNT // 10 and kills.reaped > 0 and kills.before_ready > COUNT // 20
        matrix.report("kills", kills.killed)


try:
    main()
except BaseException:
    print(f"CURB_LIFETIME_SEED={SEED} repeats it", flush=True)
    raise
