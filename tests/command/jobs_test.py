#!/usr/bin/env python3
"""Jobs as people meet them: curb run --job-cap, policies, refusals, curb ps, curb metrics: jobs_test.py BUILD"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from simulated import CONTEXT, MIB, PATIENCE_S, Machine, Process  # noqa: E402

BUILD = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else Path()
GIB = 1024 * MIB
SLACK = (160 + 64) * MIB
"""Kept for code, and less than a block of the program's."""


def key_of(job: str) -> int:
    """The key of a ledger's segment (shim/job/segment.hpp)."""

    def hashed(text: str, begin: int) -> int:
        for byte in text.encode():
            begin = (begin ^ byte) * 0x100000001B3 % 2**64
        return begin

    key = hashed(job, hashed("curb", 0xCBF29CE484222325) ^ os.geteuid()) % 2**32
    return key - 2**32 if key >= 2**31 else key


class JobTest(unittest.TestCase):
    def setUp(self) -> None:
        self.machine = Machine(BUILD)
        self.machine.__enter__()
        self.addCleanup(self.machine.__exit__)
        self.job = f"job_test-{os.getpid()}-{self._testMethodName}"
        self.log = self.machine.folder / "stderr"

    def told(self, **environment: str) -> Process:
        program = [BUILD / "tests/scenarios", "does_what_it_is_told"]
        with self.log.open("a") as log:
            return self.machine.start(program, self.machine.under_curb(**{"CURB_JOB": self.job} | environment), stderr=log)

    def filled(self, process: Process) -> int:
        process.tell("fill")
        return int(process.line())

    def used(self) -> int:
        return int(self.machine.books()[0]["used"])

    def test_two_processes_share_a_cap_and_a_refusal_says_which_holds_what(self) -> None:
        one, other = self.told(CURB_JOB_CAP="4GiB"), self.told(CURB_JOB_CAP="4GiB")
        held = self.filled(one)
        self.assertLessEqual(self.filled(other), CONTEXT)
        self.assertLessEqual(self.used(), 4 * GIB)
        self.assertGreater(self.used(), 4 * GIB - 2 * SLACK)
        last = self.log.read_text().splitlines()[-1]
        self.assertIn(f"curb[{other.pid}]: refused 64 MiB on cuda:0: ", last)
        self.assertIn(f"{held / GIB:.2f} GiB by {one.pid} (scenarios), 518 MiB by this process", last)
        table = self.machine.curb("ps").stdout
        self.assertIn(f"  job tree {self.job}  {self.used() / GIB:.2f} GiB of 4 GiB held\n", table)
        status = json.loads(self.machine.curb("ps", "--json").stdout)
        self.assertEqual({one["status"]["job"] for one in status["processes"]}, {f"tree {self.job}"})
        metrics = self.machine.curb("metrics").stdout
        self.assertRegex(metrics, rf'curb_job_held_bytes\{{.*job="tree {self.job}"\}} {self.used()}\n')
        self.assertRegex(metrics, rf'curb_job_cap_bytes\{{.*job="tree {self.job}"\}} {4 * GIB}\n')
        one.kill()
        self.assertGreater(self.filled(other), 4 * GIB - SLACK)

    def test_jobs_apart_do_not_share_and_a_lower_own_cap_holds(self) -> None:
        one = self.told(CURB_JOB_CAP="4GiB", CURB_CAP="2GiB")
        other = self.told(CURB_JOB_CAP="4GiB", CURB_JOB=f"{self.job}-other")
        self.assertLessEqual(self.filled(one), 2 * GIB)
        self.assertGreater(self.filled(other), 4 * GIB - SLACK)

    def test_an_edit_lowers_the_cap_of_the_job(self) -> None:
        policy = self.machine.policy({"job": {"cap": "4GiB"}})
        one = self.told(CURB_POLICY=str(policy))
        one.asked("take 64")
        self.machine.policy({"job": {"cap": "600MiB"}})
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            one.tell("take 64")
            if one.line() == "refused":
                break
            time.sleep(0.05)
        self.assertLess(time.monotonic(), deadline)

    def test_without_a_usable_ledger_requests_are_refused_and_the_program_goes_on(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        segment = libc.shmget(key_of(f"tree {self.job}"), 4096, 0o1600)
        self.assertGreaterEqual(segment, 0)
        try:
            done = subprocess.run(
                [BUILD / "tests/scenarios", "does_what_it_is_told"],
                env=self.machine.under_curb(CURB_JOB=self.job, CURB_JOB_CAP="4GiB"),
                input="", capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
            self.assertIn(f'the ledger of the job "tree {self.job}" cannot be used: a process of another version of curb', done.stderr)
            self.assertIn("refused", done.stderr)
        finally:
            libc.shmctl(segment, 0, None)

    def test_curb_run_names_the_job_and_an_inner_one_stays_in_it(self) -> None:
        said = self.machine.curb("run", "--job-cap", "2GiB", "--dry-run", "--", "true").stdout
        self.assertIn("CURB_JOB_CAP=2GiB\n", said)
        self.assertRegex(said, r"CURB_JOB=\d+-[0-9a-f]{8}\n")
        inner = self.machine.curb("run", "--job-cap", "4GiB", "--dry-run", "--", "true", CURB_JOB="x", CURB_JOB_CAP="2GiB")
        self.assertIn("CURB_JOB_CAP=2GiB\n", inner.stdout)
        self.assertNotIn("CURB_JOB=", inner.stdout)
        self.assertIn("--job-cap 4GiB has no effect", inner.stderr)
        wrong = self.machine.curb("run", "--job-cap", "4", "--", "true")
        self.assertEqual(wrong.returncode, 125)
        self.assertIn("--job-cap", wrong.stderr)

    def test_a_policy_with_a_job_makes_a_tree_without_curb_run(self) -> None:
        policy = self.machine.policy({"job": {"cap": "4GiB"}})
        done = subprocess.run(
            ["/bin/sh", "-c", "echo $CURB_JOB; sh -c 'echo $CURB_JOB'"],
            env=self.machine.under_curb(CURB_POLICY=str(policy)), capture_output=True, text=True, check=True, timeout=PATIENCE_S,
        )  # fmt: skip
        first, second = done.stdout.split()
        self.assertEqual(first, second)

    def test_policy_show_says_where_the_cap_of_the_job_comes_from(self) -> None:
        shown = self.machine.curb("policy", "show", CURB_JOB_CAP="2GiB", HOME="/nonexistent").stdout
        self.assertRegex(shown, r"cap +2GiB +CURB_JOB_CAP")


if __name__ == "__main__":
    unittest.main()
