#!/usr/bin/env python3
"""Programs that never idle, in turns on a GPU that cannot hold them: turns_load_test.py BUILD

Each has memory of every family, checks every word again and again, and replaces blocks. Meanwhile programs are killed and
followed by others, stopped, suspended and resumed, the policy is edited, and the calls fail, one after the other, that curb makes
at the end and at the beginning of a turn. CURB_TURNS sets the number of turns, CURB_LOAD_SEED repeats a run's choices.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

from processes import BUILD, SEED, Judge, status_of

import matrix
from simulated import MIB, Machine, Process, within

TURNS = int(os.environ.get("CURB_TURNS", "0")) or matrix.figure("turns")
BLOCKS = 6
"""Of 20 MiB, that each program has beside its families."""
SLACK = 60 * MIB
"""By how much programs of different seeds may differ."""


class Busy(Process):
    """A program that checks its memory without a pause, on a thread of the test."""

    def __init__(self, machine: Machine, environment: dict[str, str], seed: int) -> None:
        self.machine, self.environment, self.seed = machine, environment, seed
        super().__init__([BUILD / "tests/moves_program", str(seed), "all", str(BLOCKS)], environment)
        self.rounds = 0
        self.fails = 0
        """The call of curb's own that fails next; 0: none."""
        self.answer_was = ""
        self.ending = False
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self) -> None:
        answer = self.line()
        while answer and not self.ending:
            if fails := self.fails:
                self.fails = 0
                self.tell(f"fail {fails}")
                if self.line() != "resting":
                    break
            self.tell("check")
            answer = self.line()
            self.answer_was = answer or self.answer_was
            if not answer.startswith("right"):
                break
            self.rounds += 1

    def turns(self) -> int:
        return int((status_of(self.machine, self.pid).get("turn") or {}).get("count", 0))

    def stop_working(self) -> None:
        self.ending = True
        self.thread.join()


class Turns(Judge):
    def one_machine(self, number: int, turns: int) -> None:
        programs = self.random.randrange(2, 9)
        with Machine(BUILD) as machine:
            with_all = self.measure(machine)
        room = programs * (with_all + SLACK) - programs * BLOCKS * 10 * MIB
        with Machine(BUILD, memory=f"{room // MIB}MiB") as machine:
            self.edit(machine, 100)
            environment = machine.under_curb(CURB_POLICY=str(machine.folder / "job.json"))
            all_ = [Busy(machine, environment, self.random.randrange(1 << 30)) for _ in range(programs)]
            self.counts["programs"] += programs
            try:
                self.trouble(machine, all_, number, turns)
                for one in all_:
                    one.stop_working()
                    self.expect(not one.answer_was or one.answer_was.startswith("right"), f"program {one.pid} (seed {one.seed}) said {one.answer_was!r}")
                    self.expect(one.ends() == 0, f"program {one.pid} ended with {one.child.poll()}")
            finally:
                for one in all_:
                    one.kill()
            self.expect_empty(machine, "the end of all")

    def measure(self, machine: Machine) -> int:
        """Returns what a program holds."""
        program = Busy(machine, machine.under_curb({"suspend": {"turn": "1h"}}), SEED)
        within(lambda: program.rounds > 2)
        held = machine.used()
        program.stop_working()
        program.ends()
        return held

    @staticmethod
    def edit(machine: Machine, turn_ms: int) -> None:
        policy: dict[str, Any] = {"suspend": {"turn": f"{turn_ms}ms", "deep": "never"}, "log": {"level": "off"}}
        machine.policy(policy)

    def trouble(self, machine: Machine, all_: list[Busy], number: int, turns: int) -> None:
        made, call, until = 0, 1, time.monotonic() + 60 + turns * 20
        seen: dict[int, int] = {}
        while made < turns and not self.wrong and time.monotonic() < until:
            time.sleep(0.1)
            which = self.random.randrange(len(all_))
            one = all_[which]
            for other in all_:
                now = other.turns()
                made += max(0, now - seen.get(other.pid, 0))
                seen[other.pid] = max(now, seen.get(other.pid, 0))
            self.expect(one.thread.is_alive(), f"{number}: program {one.pid} (seed {one.seed}) said {one.answer_was!r}")
            what = self.random.random()
            if what < 0.08:
                one.kill()
                one.thread.join()
                all_[which] = Busy(machine, one.environment, self.random.randrange(1 << 30))
                self.counts["kills"] += 1
            elif what < 0.14:
                os.kill(one.pid, signal.SIGSTOP)
                time.sleep(self.random.random() / 2)
                os.kill(one.pid, signal.SIGCONT)
                self.counts["stops"] += 1
            elif what < 0.20:
                self.edit(machine, self.random.choice((50, 100, 300)))
                self.counts["edits"] += 1
            elif what < 0.26:
                if machine.curb("suspend", one.pid).returncode == 0:
                    self.counts["suspends"] += 1
                    done = machine.curb("resume", "--wait", "60s", one.pid)
                    self.expect(done.returncode == 0, f"{number}: a resume failed: {done.stderr}")
            elif what < 0.8:
                one.fails, call = call, call + 1 if call < 400 else 1
                self.counts["failures"] += 1
        self.counts["turns"] += made
        self.expect(made >= turns, f"{number}: only {made} of {turns} turns in time")


def main() -> int:
    turns = Turns()
    machines = max(1, TURNS // 1000)
    for number in range(machines):
        if not turns.wrong:
            turns.one_machine(number, -(-TURNS // machines))
    return turns.report("turns", turns.counts["turns"])


if __name__ == "__main__":
    sys.exit(main())
