#!/usr/bin/env python3
"""Jobs: curb run --job-cap, policies, refusals, curb ps, curb metrics: jobs_test.py BUILD"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from simulated import CONTEXT, MIB, PATIENCE_S, OfMachine, Process, within  # noqa: E402
from skipping import run_cases  # noqa: E402

GIB = 1024 * MIB
SLACK = (160 + 64) * MIB
"""What a full cap leaves free: the reserve for code, and less than one 64 MiB block of the program."""
UNSHARE = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]


def key_of(job: str) -> int:
    """Returns the key of a ledger's segment (shim/job/segment.hpp)."""

    def hashed(text: str, begin: int) -> int:
        for byte in text.encode():
            begin = (begin ^ byte) * 0x100000001B3 % 2**64
        return begin

    key = hashed(job, hashed("curb", 0xCBF29CE484222325) ^ os.geteuid()) % 2**32
    return key - 2**32 if key >= 2**31 else key


class JobTest(OfMachine):
    def setUp(self) -> None:
        super().setUp()
        self.job = f"job_test-{os.getpid()}-{self._testMethodName}"
        self.log = self.machine.folder / "stderr"

    def run_program(self, **environment: str) -> Process:
        with self.log.open("a") as log:
            return self.machine.start(self.machine.program, self.machine.under_curb(**{"CURB_JOB": self.job} | environment), stderr=log)

    def filled(self, process: Process) -> int:
        process.tell("fill")
        return int(process.line())

    def expect_full(self, cap: int, processes: int = 1) -> None:
        """Expects that so many processes have filled the job's cap, and that the device holds no more."""
        self.assertLessEqual(self.machine.used(), cap)
        self.assertGreater(self.machine.used(), cap - processes * SLACK)

    def test_two_processes_share_a_cap_and_a_refusal_says_which_holds_what(self) -> None:
        one, other = self.run_program(CURB_JOB_CAP="4GiB"), self.run_program(CURB_JOB_CAP="4GiB")
        held = self.filled(one)
        self.assertLessEqual(self.filled(other), CONTEXT)
        self.expect_full(4 * GIB, processes=2)
        last = self.log.read_text().splitlines()[-1]
        self.assertIn(f"curb[{other.pid}]: refused 64 MiB on cuda:0: ", last)
        self.assertIn(f"{held / GIB:.2f} GiB by {one.pid} (scenarios), 518 MiB by this process", last)
        table = self.machine.curb("ps").stdout
        self.assertIn(f"  job tree {self.job}  {self.machine.used() / GIB:.2f} GiB of 4 GiB held\n", table)
        status = json.loads(self.machine.curb("ps", "--json").stdout)
        jobs = {each["pid"]: each["status"]["job"] for each in status["processes"] if each["pid"] in (one.pid, other.pid)}
        self.assertEqual(jobs, dict.fromkeys((one.pid, other.pid), f"tree {self.job}"))
        metrics = self.machine.curb("metrics").stdout
        self.assertRegex(metrics, rf'curb_job_held_bytes\{{.*job="tree {self.job}"\}} {self.machine.used()}\n')
        self.assertRegex(metrics, rf'curb_job_cap_bytes\{{.*job="tree {self.job}"\}} {4 * GIB}\n')
        one.kill()
        self.assertGreater(self.filled(other), 4 * GIB - SLACK)

    def test_the_others_release_as_often_as_requests_lack_something(self) -> None:
        policy = self.machine.policy({"gpu": {"*": {"cache": {"max": "4GiB", "idle": "10m"}}}})
        pair = [self.run_program(CURB_JOB_CAP="4GiB", CURB_POLICY=str(policy)) for _ in range(2)]
        for _ in range(4):
            for process in pair:
                process.asked("take 2048")
                process.asked("drop")
        self.assertLessEqual(self.machine.used(), 4 * GIB)

    def test_curb_cap_sets_the_cap_of_a_job(self) -> None:
        one, other = self.run_program(CURB_JOB_CAP="8GiB"), self.run_program(CURB_JOB_CAP="8GiB")
        one.asked("take 64")
        other.asked("take 64")
        done = self.machine.curb("cap", "--job", f"tree {self.job}", "4GiB")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn(f"job tree {self.job}: cuda:0 cap 8 GiB -> 4 GiB\n", done.stdout)
        later = self.run_program(CURB_JOB_CAP="8GiB")
        for process in (other, later, one):
            self.filled(process)
        self.expect_full(4 * GIB, processes=3)
        answer = json.loads(self.machine.curb("cap", "--job", self.job, "--reset", "--json").stdout)[0]
        self.assertEqual((answer["job"], answer["gpus"][0]["now"]), (f"tree {self.job}", 8 * GIB))
        # The other processes notice it a moment later.
        self.assertTrue(within(lambda: self.filled(later) and self.machine.used() > 8 * GIB - 3 * SLACK))
        none = self.machine.curb("cap", "--job", "42", "4GiB")
        self.assertEqual(none.returncode, 125)
        self.assertIn("no job '42' is running", none.stderr)

    def test_a_live_cap_ends_with_the_job(self) -> None:
        one = self.run_program(CURB_JOB_CAP="4GiB")
        one.asked("take 64")
        name = f"tree {self.job}"
        self.assertEqual(self.machine.curb("cap", "--job", name, "1GiB").returncode, 0)
        self.filled(one)
        self.assertLessEqual(self.machine.used(), GIB)
        self.assertRegex(
            self.log.read_text(),
            r"of the job's cap of 1 GiB, which curb cap --job has set, is held .* To allow it: go back to the cap of its "
            rf"policy: curb cap --job '{name}' --reset, or have the program free its caches: curb release {one.pid}",
        )
        self.assertEqual(self.machine.curb("cap", "--job", name, "40GiB").returncode, 0)
        one.kill()
        fresh = self.run_program(CURB_JOB_CAP="4GiB")
        self.filled(fresh)
        self.expect_full(4 * GIB)

    def measured_beside_a_stranger(self, mib: int) -> Process:
        """A process of the job, under a cap of 8 GiB. Without pids in NVML's list, its first context costs what the device
        loses during the call, which takes 99 ms: a stranger allocates meanwhile."""
        stranger = self.machine.run_program(self.machine.bare)
        job = {"CURB_JOB": self.job, "CURB_JOB_CAP": "8GiB"}
        environment = self.machine.under_curb(CURB_SIM_NVML="nopids", CURB_SIM_LATENCY="h100", **job)
        with self.log.open("a") as log:
            process = Process(self.machine.program, environment, stderr=log)
        self.addCleanup(process.kill)
        within(lambda: process.pid in {pid for pid, _ in self.machine.held()})
        os.kill(process.pid, signal.SIGSTOP)
        stranger.asked(f"take {mib}")
        os.kill(process.pid, signal.SIGCONT)
        process.expect("ready")
        return process

    def test_a_stranger_whose_memory_counted_as_a_context_is_forgotten(self) -> None:
        keeper = self.run_program(CURB_JOB_CAP="8GiB")
        self.measured_beside_a_stranger(3000).kill()
        keeper.asked("take 5500")
        self.run_program(CURB_JOB_CAP="8GiB").asked("take 64")

    def test_a_refused_context_names_the_job_and_the_holders(self) -> None:
        holder = self.run_program(CURB_JOB_CAP="8GiB")
        self.measured_beside_a_stranger(8000)
        self.assertRegex(
            self.log.read_text(),
            r"refused a context on cuda:0: it takes 8.32 GiB, with which 8.82 GiB of the job's cap of 8 GiB is held "
            rf"\(8.32 GiB by this process, 518 MiB by {holder.pid} \(scenarios\)\).*\. The program sees .* free memory in its "
            rf"other processes: curb release {holder.pid}\n",
        )

    def test_each_container_is_a_job_by_its_cgroup(self) -> None:
        policy = self.machine.policy({"job": {"cap": "4GiB", "of": "cgroup"}})
        pair = [self.apart(["--cgroup"], "true", CURB_POLICY=str(policy), CURB_JOB_CAP="") for _ in range(2)]
        outside = self.run_program(CURB_POLICY=str(policy))
        for process in (*pair, outside):
            self.assertGreater(self.filled(process), 4 * GIB - SLACK)
        pids = {process.pid for process in (*pair, outside)}

        def jobs() -> set[str]:  # of those that answer in time
            shown = json.loads(self.machine.curb("ps", "--json").stdout)["processes"]
            return {each["status"]["job"] for each in shown if each["pid"] in pids and each["status"]}

        self.assertTrue(within(lambda: len(jobs()) == 3), jobs())
        self.assertTrue(within(lambda: sum(" in namespace " in job for job in jobs()) == 2), jobs())

    def test_processes_in_namespaces_of_time_share_a_job(self) -> None:
        process = self.apart(["--time", "--fork", "--monotonic", "86400", "--boottime", "86400"], "true")
        other = self.run_program(CURB_JOB_CAP="4GiB")
        process.asked("take 2048")
        self.filled(other)
        self.expect_full(4 * GIB, processes=2)

    def test_a_job_of_another_user_is_reported(self) -> None:
        if os.geteuid() != 0:
            self.skipTest("only root has processes of other users")
        with subprocess.Popen(["sleep", "100"], user=65534) as root:
            self.addCleanup(root.kill)
            process = self.run_program(CURB_JOB=f"{root.pid}-0badcafe", CURB_JOB_CAP="4GiB")
            process.asked("take 64")
            root.kill()
        self.assertRegex(self.log.read_text(), "was begun by user 65534, and this process runs as user 0: the job's cap applies")

    def test_a_job_is_a_selection(self) -> None:
        mine = [self.run_program(CURB_JOB_CAP="8GiB") for _ in range(2)]
        apart = self.run_program(CURB_JOB_CAP="8GiB", CURB_JOB=f"{self.job}-other")
        for process in (*mine, apart):
            process.asked("take 64")
        for job in (self.job, f"tree {self.job}", f"{self.job}*r", "*"):
            answers = json.loads(self.machine.curb("release", "--job", job, "--json").stdout)
            found = {each["pid"] for each in answers} & {mine[0].pid, mine[1].pid, apart.pid}
            apart_too = job.endswith("r") or job == "*"
            wanted = ({apart.pid} if apart_too else set()) | ({one.pid for one in mine} if not job.endswith("r") else set())
            self.assertEqual(found, wanted, job)

    def test_requests_at_the_cap_of_a_job_are_served_in_order(self) -> None:
        policy = self.machine.policy({"gpu": {"*": {"growth": {"wait": "60s"}}}})
        holder, first, second = (self.run_program(CURB_JOB_CAP="8GiB", CURB_POLICY=str(policy)) for _ in range(3))
        for process in (first, second, holder):
            process.asked("take 64")
        holder.asked("take 5000")
        first.tell("take 4096")  # waits for the holder
        self.waits(first)
        second.tell("take 1024")  # both fit once the holder is gone
        self.waits(second)
        holder.kill()
        self.assertNotEqual(first.line(), "refused")
        self.assertNotEqual(second.line(), "refused")

    def waits(self, process: Process) -> None:
        def answer() -> Any:
            return json.loads(self.machine.curb("ps", str(process.pid), "--json").stdout)

        self.assertTrue(within(lambda: answer()["processes"][0]["status"].get("waits")), "it does not wait")

    def test_what_other_systems_hand_in_caps_where_curb_does_not(self) -> None:
        process = self.run_program(CUDA_DEVICE_MEMORY_LIMIT_0="2g", CURB_JOB="")
        held = self.filled(process)
        self.assertLessEqual(held, 2 * GIB)
        self.assertGreater(held, 2 * GIB - SLACK)
        self.assertIn("raise CUDA_DEVICE_MEMORY_LIMIT_0, from which it has its cap", self.log.read_text())
        self.assertIn("2 GiB, from CUDA_DEVICE_MEMORY_LIMIT_0", self.machine.curb("ps", str(process.pid)).stdout)
        self.assertIn("CUDA_DEVICE_MEMORY_LIMIT_0=2g", self.machine.curb("doctor", str(process.pid)).stdout)
        process.kill()
        above = self.run_program(NVIDIA_GPU_MEMORY_LIMIT="2048", CURB_CAP="3GiB", CURB_JOB="")
        self.assertGreater(self.filled(above), 3 * GIB - SLACK)
        above.kill()
        shown = self.machine.curb("policy", "show", GPU_MEMORY_LIMIT="4096", HOME="/nonexistent").stdout
        self.assertRegex(shown, r"cap +4GiB +GPU_MEMORY_LIMIT")
        ignoring = self.machine.policy({"environment": False})
        free = self.run_program(GPU_MEMORY_LIMIT="1024", CURB_POLICY=str(ignoring), CURB_JOB="")
        free.asked("take 2048")
        wrong = self.run_program(GPU_MEMORY_LIMIT="lots", CURB_JOB="")
        wrong.asked("take 64")
        self.assertIn("GPU_MEMORY_LIMIT is 'lots', which is not a limit that curb can read", self.log.read_text())

    def test_above_the_soft_limit_of_its_cgroup_a_process_releases(self) -> None:
        policy = self.machine.policy({"gpu": {"*": {"cap": "8GiB", "cache": {"max": "4GiB", "idle": "10m"}}}})
        process = self.run_program(CURB_POLICY=str(policy), CURB_JOB="", CURB_LOG="info", CURB_SIM_SOFT_LIMIT=str(2 * GIB))
        process.asked("take 3072")
        process.asked("drop")
        self.assertTrue(within(lambda: self.machine.used() <= 2 * GIB))
        self.assertTrue(within(lambda: "on the soft limit of its cgroup" in self.log.read_text()))

    def test_jobs_apart_do_not_share_and_a_lower_own_cap_holds(self) -> None:
        one = self.run_program(CURB_JOB_CAP="4GiB", CURB_CAP="2GiB")
        other = self.run_program(CURB_JOB_CAP="4GiB", CURB_JOB=f"{self.job}-other")
        self.assertLessEqual(self.filled(one), 2 * GIB)
        self.assertGreater(self.filled(other), 4 * GIB - SLACK)

    def test_an_edit_lowers_the_cap_of_the_job(self) -> None:
        policy = self.machine.policy({"job": {"cap": "4GiB"}})
        one = self.run_program(CURB_POLICY=str(policy))
        one.asked("take 64")
        self.machine.policy({"job": {"cap": "600MiB"}})
        self.assertTrue(within(lambda: one.answer("take 64") == "refused"))

    def test_without_a_usable_ledger_requests_are_refused_and_the_program_goes_on(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.shmat.restype = ctypes.c_void_p
        segment = libc.shmget(key_of(f"tree {self.job}"), 4096, 0o1600)
        self.assertGreaterEqual(segment, 0)
        layout = libc.shmat(segment, None, 0)
        ctypes.c_uint64.from_address(layout).value = 0x6375_7262_6A6F_62FF  # of another version
        try:
            done = subprocess.run(
                self.machine.program, env=self.machine.under_curb(CURB_JOB=self.job, CURB_JOB_CAP="4GiB"),
                input="", capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
            self.assertIn(f'the ledger of the job "tree {self.job}" cannot be used: a process of another version of curb', done.stderr)
            self.assertIn("refused", done.stderr)
        finally:
            libc.shmdt(ctypes.c_void_p(layout))
            libc.shmctl(segment, 0, None)

    def apart(self, options: list[str], prepare: str, **more: str) -> Process:
        """A process of the job in namespaces of its own, once `prepare` has run there. Skips the test if it may not."""
        words = [*UNSHARE, *options, "sh", "-c"]
        if subprocess.run([*words, prepare], capture_output=True, timeout=PATIENCE_S, check=False).returncode != 0:
            self.skipTest(f"this user may not: {' '.join(words)} {prepare!r}")
        program = ["env", f"LD_PRELOAD={self.machine.preload}", *self.machine.program]
        environment = self.machine.bare | {"CURB_JOB": self.job, "CURB_JOB_CAP": "4GiB"} | more
        with self.log.open("a") as log:
            return self.machine.start([*words, f'{prepare} && exec "$@"', "sh", *program], environment, stderr=log)

    def test_a_system_without_shared_memory_refuses_and_the_program_goes_on(self) -> None:
        process = self.apart(["--ipc"], "echo 0 > /proc/sys/kernel/shmmni")
        for _ in range(2):
            self.assertEqual(process.answer("take 64"), "error")  # its context was refused
        self.assertIn("cannot be used: the system gives no shared memory for it: No space left on device", self.log.read_text())
        self.assertIn("0 segments are in use. ipcs -m lists them", self.log.read_text())

    def test_where_others_have_all_shared_memory_the_message_names_them(self) -> None:
        taken = "for i in 1 2 3; do setpriv --reuid=54321 --clear-groups ipcmk -M 1; done && ipcmk -M 1"
        process = self.apart(["--ipc"], f"echo 4 > /proc/sys/kernel/shmmni && {{ {taken}; }} >&2")
        self.assertEqual(process.answer("take 64"), "error")
        self.assertIn("4 segments are in use: 3 by user 54321, 1 by user 0. ipcs -m lists them", self.log.read_text())

    def test_dev_shm_may_be_full_or_read_only(self) -> None:
        for options in ("ro", "size=4k"):
            fill = "" if options == "ro" else " && head -c 4096 /dev/zero > /dev/shm/full"
            process = self.apart(["--mount"], f"mount -t tmpfs -o {options} none /dev/shm{fill}")
            other = self.run_program(CURB_JOB_CAP="4GiB")
            process.asked("take 2048")
            self.filled(other)
            self.expect_full(4 * GIB, processes=2)
            for one in (process, other):
                one.kill()

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
    run_cases()
