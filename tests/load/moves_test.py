#!/usr/bin/env python3
"""Memory that curb moves out of a GPU and back again and again: moves_test.py BUILD

Programs with memory of every family take light naps, after a few milliseconds without a call. Each call of the driver
in a move out and back ends a program by SIGKILL, one after the other: nothing of it stays on the GPU. Each fails, one after
the other, and others at random, while programs fork and allocate anew; an everyday run takes each third call. After each nap a program checks
every word of its memory. CURB_MOVES sets the number of moves, CURB_LOAD_SEED repeats a run's choices.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from processes import BUILD, SEED, Judge, status_of

import matrix
from simulated import PATIENCE_S, Machine, Process, within

MOVES = int(os.environ.get("CURB_MOVES", "0")) or matrix.figure("moves")
POLICY = {"suspend": {"idle": "5ms", "light": True, "deep": "never"}, "log": {"level": "off"}}
AT_ONCE = 4
"""Machines, each with one program."""
STEP = 1 if matrix.NIGHTLY else 3
"""An everyday run takes each third call."""


class Mover(Process):
    def __init__(self, machine: Machine, seed: int, families: str) -> None:
        self.machine = machine
        super().__init__([BUILD / "tests/moves_program", str(seed), families], machine.under_curb(POLICY))
        self.expect("ready")
        self.seen = 0

    def nap(self) -> dict[str, Any]:
        found: dict[str, Any] = status_of(self.machine, self.pid).get("nap") or {}
        return found

    def rests(self) -> bool:
        """Waits until it is out, or stays. False if it has ended instead."""

        def settled() -> bool:
            if self.child.poll() is not None:
                return True
            nap = self.nap()
            return bool(nap.get("out") or nap.get("refused"))

        within(settled, pause=0.005)
        return self.child.poll() is None

    def moves(self) -> int:
        """Returns how often it has left since the last question."""
        before, self.seen = self.seen, int(self.nap().get("count", self.seen))
        return self.seen - before


class Moves(Judge):
    def __init__(self) -> None:
        super().__init__()
        self.failed: set[str] = set()

    def kill_at_each_call(self) -> None:
        """One program after the other ends at the next call of a move, until one survives its move out and back."""
        with Machine(BUILD) as machine:
            call, survives = self.random.randrange(STEP) - STEP + 1, False
            while not survives:
                call += STEP
                program = Mover(machine, SEED, "few")
                program.tell(f"kill {call}")
                is_out = program.rests() and program.nap().get("out")
                if program.child.poll() is None:
                    program.expect("resting")
                    program.tell("check")
                    is_back = program.line() != ""
                    survives = bool(is_out and is_back)
                    call -= STEP * (is_back and not is_out)  # it took no nap, so it made no such call
                    status = program.ends()
                else:
                    status = program.child.wait(PATIENCE_S)
                self.expect(status in (0, -signal.SIGKILL), f"killed at call {call}, it ended with {status}")
                program.kill()
                self.expect_empty(machine, f"a kill at call {call}")
                self.counts["kills in a move"] += status != 0
            # The next process that waits for a GPU deletes the place of a dead one in the order.
            left = [name for name in machine.sockets() if not name.endswith(".sock")]
            self.expect(not left, f"programs that were killed left {left}")
        self.expect(call > 30, f"a move has only {call} calls")

    def move(self, number: int, share: int) -> None:
        """Has programs of one machine move so often."""
        choose = random.Random(SEED * 100 + number)
        with Machine(BUILD) as machine:
            program = Mover(machine, choose.randrange(1 << 30), "few")
            # The machines share the calls that fail in turn. 0: all have.
            in_turn, made = number * STEP + 1 + choose.randrange(STEP), 0
            while (made < share or in_turn != 0) and not self.wrong:
                call = in_turn or choose.randrange(1, 400)
                if choose.random() < 0.2:
                    call = 0
                program.tell(f"fail {call}")
                program.expect("resting")
                program.rests()
                if choose.random() < 0.05:
                    program.tell("fork")
                    program.expect("forked")
                    self.counts["forks"] += 1
                program.tell("check")
                answer = program.line()
                right, _, failed = (answer + "  ").split(" ")[:3]
                self.expect(right == "right", f"{number}: after a failure of call {call}: {answer!r}")
                made += (moved := program.moves())
                self.counts["moves"] += moved
                if failed not in ("", "nothing"):
                    self.failed.add(failed)
                    self.counts["calls that failed"] += 1
                    in_turn += AT_ONCE * STEP if in_turn != 0 else 0
                elif call != 0 and in_turn != 0:
                    in_turn = 0
                    program = self.next(machine, program, choose)
                elif choose.random() < 0.02:
                    program = self.next(machine, program, choose)
            program.tell("fail 0")
            program.expect("resting")
            self.expect(program.ends() == 0, f"{number}: it ended with {program.child.poll()}")
            program.kill()
            self.expect_empty(machine, f"the end of program {number}")

    def next(self, machine: Machine, program: Mover, choose: random.Random) -> Mover:
        """Kills the program, and starts another one."""
        time.sleep(choose.random() / 50)
        program.kill()
        self.counts["kills"] += 1
        self.expect_empty(machine, "a kill")
        return Mover(machine, choose.randrange(1 << 30), "all")


def main() -> int:
    moves = Moves()
    with ThreadPoolExecutor(AT_ONCE + 1) as pool:
        kills = pool.submit(moves.kill_at_each_call)
        shares = [pool.submit(moves.move, number, -(-MOVES // AT_ONCE)) for number in range(AT_ONCE)]
        for done in (kills, *shares):
            done.result()
    print("calls that failed:", ", ".join(sorted(moves.failed)))
    least = {"cuMemCreate", "cuMemMap", "cuMemRelease", "cuMemSetAccess", "cuMemUnmap", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"}
    moves.expect(STEP > 1 or least <= moves.failed, f"these calls never failed: {least - moves.failed}")
    return moves.report("moves", moves.counts["moves"])


if __name__ == "__main__":
    sys.exit(main())
