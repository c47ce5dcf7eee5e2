#!/usr/bin/env python3
"""Turns: programs that never idle share a GPU that cannot hold them together: take_turns_test.py BUILD

Each checks all that it gets back, so a wrong byte ends it.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time
import unittest
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / folder) for folder in ("common", "matrix")]
import matrix  # noqa: E402
from simulated import CONTEXT, MIB, PATIENCE_S, OfMachine, Process, within  # noqa: E402
from skipping import run_cases  # noqa: E402

BUSY = [sys.executable, Path(__file__).resolve().parent / "busy_program.py"]
MEMORY_MIB, MOST_MIB = 8192, 4500
"""Of the GPU; and what each program takes, so that two do not fit."""


class TurnsTest(OfMachine):
    memory = f"{MEMORY_MIB}MiB"

    def policy(self, turn: str | None, **more: Any) -> Path:
        suspend = {} if turn is None else {"suspend": {"turn": turn, "deep": "never"}}
        return self.machine.policy(suspend | {"log": {"level": "info", "file": str(self.machine.folder / "log")}} | more)

    def busy(self, turn: str | None = "500ms", **more: Any) -> Process:
        policy = self.policy(turn, **more)
        return self.machine.start(BUSY, self.machine.under_curb(CURB_POLICY=str(policy)))

    def status(self, process: Process) -> dict[str, Any]:
        for one in json.loads(self.machine.curb("ps", "--json", process.pid).stdout)["processes"]:
            if one["pid"] == process.pid and one["status"]:
                return dict(one["status"])
        return {}

    def worked(self, process: Process) -> float:
        """Returns the seconds of a "work" in which the process was not held up."""
        line = process.line()
        self.assertTrue(line.startswith("worked "), f"it said {line!r}")
        return float(dict(pair.split("=") for pair in line.split()[1:])["busy"])

    def hold(self, programs: list[Process], mib: int = MOST_MIB) -> None:
        """Has all take memory at once."""
        for one in programs:
            one.tell(f"hold {mib}")
        for one in programs:
            one.expect("held")

    def start_work(self, programs: list[Process], seconds: int) -> None:
        """Has each take its memory, and then work."""
        self.hold(programs)
        for one in programs:
            one.tell(f"work {seconds}")

    def test_programs_that_never_idle_take_turns_and_get_equal_shares(self) -> None:
        programs = [self.busy() for _ in range(3)]
        seconds, unequal = (300, 1.1) if matrix.NIGHTLY else (16, 2)  # the shorter a run, the more one turn counts
        self.start_work(programs, seconds)
        # Together they hold more than the GPU has.
        counts = [self.status(one)["turn"]["count"] for one in programs]
        shares = sorted(self.worked(one) for one in programs)
        self.assertGreater(shares[0] * unequal, shares[-1], f"shares {shares}, turns {counts}")
        self.assertTrue(all(one.ends() == 0 for one in programs))

    def test_two_that_hold_a_half_each_and_want_more_do_not_wait_for_each_other_for_ever(self) -> None:
        one, other = self.busy(), self.busy()
        self.hold([one, other], 3200)
        self.hold([one, other], 2000)
        for process in (one, other):
            process.tell("work 1")
        for process in (one, other):
            self.worked(process)
            self.assertEqual(process.ends(), 0)

    def test_who_waits_for_memory_does_not_keep_what_it_has_for_a_whole_turn(self) -> None:
        programs = [self.busy("1h") for _ in range(3)]
        self.hold(programs, 2000)
        # Each wants more than is left, so none can work.
        for process in programs:
            process.tell("hold 2500")
        answered, *_ = select.select([process.child.stdout for process in programs], [], [], PATIENCE_S)
        at_work = next(process for process in programs if process.child.stdout in answered)
        at_work.expect("held")
        at_work.tell("work 2")
        self.worked(at_work)
        self.assertFalse(select.select([process.child.stdout for process in programs], [], [], 0)[0])

    def test_what_fits_together_stays_together(self) -> None:
        one, other = self.busy(), self.busy()
        for process in (one, other):
            process.asked("hold 3000", "held")
            process.tell("work 2")
        for process in (one, other):
            self.worked(process)
        self.assertTrue(all(self.status(process)["nap"]["count"] == 0 for process in (one, other)))

    def test_a_program_sees_the_gpu_as_if_the_others_were_out_and_what_can_never_fit_fails(self) -> None:
        holder = self.busy()
        holder.asked(f"hold {MOST_MIB}", "held")
        program = self.busy()
        program.asked("hold 20", "held")
        least = MEMORY_MIB - 2 * CONTEXT // MIB - 20 - 64
        self.assertTrue(within(lambda: int(program.answer("free").split()[1]) > least), program.answer("free"))
        self.assertEqual(program.answer(f"hold {MEMORY_MIB - 600}"), "error 2")
        self.assertEqual(holder.ends(), 0)

    def test_a_holder_without_turns_stays_and_the_request_fails(self) -> None:
        holder = self.busy(turn=None)
        holder.asked(f"hold {MOST_MIB}", "held")
        self.assertEqual(self.busy().answer(f"hold {MOST_MIB}"), "error 2")

    def test_one_of_several_ranks_takes_no_turns_and_its_wait_has_an_end(self) -> None:
        holder = self.busy(turn=None)
        holder.asked(f"hold {MOST_MIB}", "held")
        log = self.machine.folder / "rank.log"
        terms = {"suspend": {"turn": "500ms"}, "gpu": {"*": {"growth": {"wait": "1h"}}}, "log": {"level": "info", "file": str(log)}}
        policy = self.machine.policy(terms, "rank.json")
        rank = self.machine.start(BUSY, self.machine.under_curb(CURB_POLICY=str(policy), WORLD_SIZE="2", RANK="0"))
        rank.tell(f"hold {MOST_MIB}")
        self.assertTrue(within(lambda: self.status(rank).get("waits")))
        self.assertIsNotNone(self.status(rank)["waits"][0].get("until"))
        self.assertIn("(at most 1h)", log.read_text())

    def test_the_moves_of_naps_do_not_count_as_those_of_turns(self) -> None:
        policy = self.machine.policy({"suspend": {"turn": "1h", "idle": "200ms", "deep": "never"}})
        program = self.machine.start(BUSY, self.machine.under_curb(CURB_POLICY=str(policy)))
        program.asked(f"hold {MOST_MIB}", "held")
        program.tell("work 1")
        self.worked(program)
        self.assertTrue(within(lambda: self.status(program)["nap"]["out"]))
        program.tell("work 1")
        self.worked(program)
        self.assertTrue(within(lambda: self.status(program)["nap"]["light"]["back_ms"] > 0))
        self.assertEqual(self.status(program)["turn"]["moved_ms"], 0)

    def test_alone_a_program_keeps_the_gpu(self) -> None:
        alone = self.busy("100ms")
        alone.asked(f"hold {MOST_MIB}", "held")
        alone.tell("work 2")
        self.worked(alone)
        self.assertEqual(self.status(alone)["nap"]["count"], 0)

    def test_when_one_is_killed_stopped_or_suspended_the_other_goes_on(self) -> None:
        one, other = self.busy(), self.busy()
        self.hold([one, other])
        for what in ("stopped", "suspended", "killed"):
            with self.subTest(what):
                if what == "suspended":
                    self.assertEqual(self.machine.curb("suspend", one.pid).returncode, 0)
                else:
                    os.kill(one.pid, signal.SIGKILL if what == "killed" else signal.SIGSTOP)
                other.tell("work 2")
                if what == "stopped":
                    time.sleep(1)
                    os.kill(one.pid, signal.SIGCONT)
                self.worked(other)
                if what == "suspended":
                    self.assertEqual(self.machine.curb("resume", "--wait", "30s", one.pid).returncode, 0)
        self.assertEqual(other.ends(), 0)

    def test_a_cap_comes_before_turns(self) -> None:
        holder = self.busy()
        holder.asked(f"hold {MOST_MIB}", "held")
        capped = self.busy(gpu={"*": {"cap": "3GiB"}})
        self.assertEqual(capped.answer(f"hold {MOST_MIB}"), "error 2")

    def test_a_program_on_two_gpus_leaves_both_and_one_on_the_other_gpu_stays(self) -> None:
        self.gpus = 2
        self.setUp()
        both, other, beside = self.busy("300ms"), self.busy("300ms"), self.busy("300ms")
        both.asked("beside 2000", "held")
        both.asked(f"hold {MOST_MIB}", "held")
        beside.asked("beside 2000", "held")
        both.tell("work 4")
        other.asked(f"hold {MOST_MIB}", "held")
        self.assertTrue(within(lambda: self.machine.held()[both.pid, 1]["bytes"] <= CONTEXT))
        self.worked(both)
        self.assertEqual(self.status(beside)["nap"]["count"], 0)
        self.assertGreater(self.status(both)["nap"]["count"], 0)

    @unittest.skipUnless(os.geteuid() == 0, "only root can start programs of two users")
    def test_programs_of_two_users_take_turns(self) -> None:
        self.busy().ends()  # makes the machine's books
        programs = []
        for uid in (54361, 54362):
            home = self.machine.folder / str(uid)
            home.mkdir()
            os.chown(home, uid, uid)
            policy = self.machine.policy({"suspend": {"turn": "500ms", "deep": "never"}}, f"{uid}.json")
            environment = self.machine.under_curb(CURB_POLICY=str(policy)) | {"HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
            for path in (self.machine.folder, Path(self.machine.bare["CURB_SIM_STATE"]), policy):
                path.chmod(0o777)
            user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
            programs.append(self.machine.begin([*user, *BUSY], environment))
        self.start_work(programs, seconds=10)
        shares = sorted(self.worked(one) for one in programs)
        self.assertGreater(shares[0] * 2, shares[1], f"shares {shares}")

    @unittest.skipUnless(os.geteuid() == 0, "only root can leave files as another user")
    def test_processes_of_two_containers_with_the_same_pid_and_start_are_two(self) -> None:
        self.machine.start(BUSY, self.machine.under_curb()).asked("hold 2500", "held")  # it stays
        holder, waiting = self.busy(), self.machine.run_program(self.machine.under_curb(CURB_POLICY=str(self.policy("500ms"))))
        holder.asked("hold 2000", "held")
        stat = Path(f"/proc/{waiting.pid}/stat").read_text()
        start = stat[stat.rindex(")") :].split()[20]
        gpu = json.loads(self.machine.curb("ps", "--json").stdout)["gpus"][0]["uuid"]
        user = 54363
        board = Path(f"/run/curb/public/{user}" if Path("/run/curb/public").exists() else f"/tmp/curb-public-{user}")
        self.addCleanup(shutil.rmtree, board, ignore_errors=True)
        board.mkdir(mode=0o755)
        os.chown(board, user, user)
        entry = board / f"{waiting.pid}-{start}"

        def post() -> None:
            """Has the other one take its turn after the holder's."""
            now = int(time.time() * 1000)
            fresh = board / "fresh.new"
            fresh.symlink_to(f"curb 1 {waiting.pid} {start} 1 running {now} {now}\n{gpu} {1 << 32} none 0 0 turns {1 << 32} {now} 0\n")
            os.chown(fresh, user, user, follow_symlinks=False)
            fresh.rename(entry)

        post()
        waiting.tell(f"hold {MOST_MIB}")

        def leaves() -> bool:
            post()
            return bool(self.status(holder)["nap"]["count"])

        self.assertTrue(within(leaves, patience=20))
        post()
        self.assertIn(f"next is {waiting.pid} (scenarios)", self.machine.curb("ps").stdout)

    def test_an_edit_of_the_policy_changes_the_length_of_turns_while_they_run(self) -> None:
        one, other = self.busy("1h"), self.busy("1h")
        one.asked(f"hold {MOST_MIB}", "held")
        one.tell("work 6")
        other.tell(f"hold {MOST_MIB}")
        self.assertTrue(within(lambda: self.status(other).get("waits")))
        self.assertIn("; it waits for its turn", " ".join(self.machine.curb("ps", other.pid).stdout.split()))
        self.assertEqual(self.status(one)["turn"]["length_ms"], 3_600_000)
        time.sleep(1)
        self.assertEqual(self.status(one)["nap"]["count"], 0)
        self.policy("300ms")
        other.expect("held")
        self.worked(one)
        self.assertGreater(self.status(one)["turn"]["count"], 0)


if __name__ == "__main__":
    run_cases()
