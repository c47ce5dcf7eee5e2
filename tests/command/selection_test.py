#!/usr/bin/env python3
"""Options of `curb run`, and the selection of processes: selection_test.py BUILD"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from simulated import MIB, OfMachine, Process, within  # noqa: E402
from skipping import run_cases, skipped, why_closed  # noqa: E402


class Case(OfMachine):
    gpus = 2

    def launched(self, *options: str) -> tuple[int, int]:
        """Starts a shell that waits for a shell, which waits for a program under curb. Returns the pids of the first and the last."""
        run = [BUILD / "bin/curb", "run", "--quiet", "--sim", *options]
        shells = ["sh", "-c", """sh -c '"$@"; true' sh "$@"; true""", "sh"]
        shell = self.machine.start([*shells, *run, "--", *self.machine.program], self.machine.bare)
        program = shell.pid
        for _ in range(2):
            program = int(Path(f"/proc/{program}/task/{program}/children").read_text())
        self.addCleanup(os.kill, program, signal.SIGKILL)
        self.machine.wait_for_socket(program)
        return shell.pid, program

    def gpu(self, pid: int) -> dict[str, Any]:
        """Returns the process's own figures for its first GPU."""
        view = json.loads(self.machine.curb("ps", "--json", pid).stdout)
        return view["gpus"][0]["uses"][0]["books"]  # type: ignore[no-any-return]

    def pids(self, *options: object) -> set[int]:
        """Returns the pids that `curb ps` shows."""
        answer = json.loads(self.machine.curb("ps", "--json", *options).stdout)
        return {process["pid"] for process in answer["processes"]}


class Flags(Case):
    def test_a_program_has_what_the_options_say(self) -> None:
        trace, log = self.machine.folder / "trace.json", self.machine.folder / "log"
        command = [
            BUILD / "bin/curb", "run", "--quiet", "--cap", "8GiB", "--cap", "cuda:0=4GiB", "--growth", "1GiB:256MiB:0s",
            "--trace", str(trace), "--log", f"info:{log}", "--", *self.machine.program,
        ]  # fmt: skip
        process = self.machine.start(command, self.machine.bare | {"LD_PRELOAD": ""})
        gpu = self.gpu(process.pid)
        self.assertEqual((gpu["cap"], gpu["allowance"]), (4096 * MIB, 1024 * MIB))
        process.asked("take 600")
        self.assertIn("CURB_GROWTH=1GiB:256MiB:0s", self.machine.curb("ps", process.pid, COLUMNS="400").stdout)
        self.assertEqual(process.ends(), 0)
        self.assertIn("allowance", log.read_text())
        self.assertIn('"name":"allowance"', trace.read_text())

    def test_call_stacks_without_a_trace_get_a_warning(self) -> None:
        why = "call stacks have no effect without a trace: add --trace FILE"
        trace = str(self.machine.folder / "with.json")
        self.assertIn(why, self.machine.curb("run", "--stacks", "64MiB", "--", "true").stderr)
        for words in (["--quiet"], ["--trace", trace]):
            self.assertNotIn(why, self.machine.curb("run", "--stacks", "64MiB", *words, "--", "true").stderr)

    def test_the_variables_do_the_same_without_curb_run(self) -> None:
        process = self.machine.run_program(self.machine.under_curb(CURB_CAP="4GiB", CURB_GROWTH="1GiB:1GiB:10s", CURB_WAIT="100ms"))
        gpu = self.gpu(process.pid)
        self.assertEqual((gpu["cap"], gpu["allowance"]), (4096 * MIB, 1024 * MIB))

    def test_steering_by_a_variable_happens_before_main(self) -> None:
        for value, grows in (("1", "true"), ("0", ""), ("", "")):
            environment = self.machine.under_curb(CURB_CAP="4GiB", CURB_STEER=value)
            words = [sys.executable, "-c", "import os; print(os.environ.get('TF_FORCE_GPU_ALLOW_GROWTH', ''))"]
            run = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
            self.assertEqual(run.stdout.strip(), grows, value)

    def test_a_wrong_variable_refuses_all_memory_and_names_itself(self) -> None:
        process = Process(self.machine.program, self.machine.under_curb(CURB_WAIT="30"), stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        assert process.child.stderr
        self.assertIn("CURB_WAIT: '30' has no unit; did you mean \"30s\"?", process.child.stderr.readline())
        process.child.stderr.close()


class Selection(Case):
    def test_a_shell_stands_for_what_it_started(self) -> None:
        shell, program = self.launched("--cap", "8GiB")
        for words in (["release", shell, program], ["cap", shell, "6GiB"], ["suspend", shell], ["resume", shell], ["ps", shell]):
            run = self.machine.curb(*words)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertIn(f"asking what it started: {program}", run.stderr)
            self.assertIn(str(program), run.stdout)
            self.assertNotIn("2 processes", run.stdout)  # it is asked once
        self.assertEqual(self.pids("--tree", shell), {program})

    def test_descriptions(self) -> None:
        one, other = self.machine.run_program(), self.machine.run_program()
        both = {one.pid, other.pid}
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        for options in (["--name", "scen*"], ["--name", "*runs_c*"], ["--name", "runs_commands"], ["--user", user],
                        ["--gpu", "nvml:0"], ["--gpu", "cuda:0"], ["--tree", os.getpid()],
                        ["--name", "x*", "--name", "scenarios"]):  # fmt: skip
            self.assertTrue(both <= self.pids(*options), options)
        for options in (["--name", "python"], ["--gpu", "nvml:1"], ["--user", "nobody-there"], ["--tree", one.pid + 10**6],
                        ["--name", "scenarios", "--gpu", "nvml:1"]):  # fmt: skip
            self.assertFalse(both & self.pids(*options), options)
        self.assertEqual(self.pids("--tree", one.pid), {one.pid})

    def test_a_name_with_a_newline(self) -> None:
        program = self.machine.folder / "two\nlines"
        program.symlink_to(BUILD / "tests/scenarios")
        process = self.machine.start([program, "runs_commands"], self.machine.under_curb())
        (shown,) = json.loads(self.machine.curb("ps", "--json", process.pid).stdout)["processes"]
        self.assertEqual(shown["name"], "two\\x0Alines")

    def test_several_at_once(self) -> None:
        one, other = self.machine.run_program(), self.machine.run_program()
        one.asked("pool")
        run = self.machine.curb("release", "--tree", os.getpid())
        self.assertEqual(run.returncode, 0, run.stderr)
        lines = run.stdout.splitlines()
        self.assertEqual(lines[0].split(), ["PID", "RELEASED", "IN", "NAME", "FROM"])
        rows = {int(line.split()[0]): line for line in lines[1:-1]}
        self.assertEqual(set(rows), {one.pid, other.pid})
        self.assertIn("nothing; curb release", rows[other.pid])
        self.assertIn("of 2 processes", lines[-1])
        run = self.machine.curb("cap", one.pid, other.pid, "6GiB")
        self.assertEqual((run.returncode, len(run.stdout.splitlines())), (0, 4))
        self.assertEqual(self.machine.curb("cap", "--tree", os.getpid(), "--reset").returncode, 0)
        run = self.machine.curb("suspend", one.pid, other.pid)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stdout.count("suspended "), 2)
        # A description skips processes that are suspended already.
        self.assertEqual(self.machine.curb("suspend", "--tree", os.getpid()).stdout, "")
        self.assertEqual(self.machine.curb("resume", "--tree", os.getpid()).stdout.count("resumed "), 2)

    def test_a_simulated_machine_is_that_of_the_processes(self) -> None:
        process = self.machine.run_program()
        for words in (["ps", "--sim", process.pid], ["doctor", "--sim", process.pid], ["suspend", "--sim", process.pid],
                      ["ps", "--sim"], ["resume", "--sim", process.pid]):  # fmt: skip
            run = self.machine.curb(*words, LD_LIBRARY_PATH="", CURB_SIM_STATE="")
            self.assertEqual(run.returncode, 0, run.stderr)
        shown = self.machine.curb("ps", "--sim", LD_LIBRARY_PATH="", CURB_SIM_STATE="").stdout
        self.assertIn("518 MiB of 80.6 GiB used", shown)
        process.kill()
        run = self.machine.curb("ps", "--sim", LD_LIBRARY_PATH="", CURB_SIM_STATE="")
        self.assertEqual(run.returncode, 125)
        self.assertIn("no process shares its simulated machine", run.stderr)

    def test_ps_of_a_simulated_machine_shows_no_process_of_another(self) -> None:
        here, there = self.machine.run_program(), self.machine.folder / "another machine"
        other = self.machine.run_program(self.machine.under_curb(CURB_SIM_STATE=str(there)))
        self.assertLessEqual({here.pid, other.pid}, self.pids())
        shown = self.pids("--sim")
        self.assertIn(here.pid, shown)
        self.assertNotIn(other.pid, shown)

    def test_curb_makes_no_file_for_a_simulated_machine_and_root_touches_none_of_another_users_process(self) -> None:
        # Other tests may run on simulated machines of their own.
        def sees_none(state: Path, pid: int) -> None:
            run = self.machine.curb("ps", "--sim", "--json", LD_LIBRARY_PATH="", CURB_SIM_STATE="")
            self.assertNotIn(str(state), run.stderr)
            gpus = json.loads(run.stdout)["gpus"] if run.returncode == 0 else []
            self.assertEqual([use for gpu in gpus for use in gpu["uses"] if use["pid"] == pid and use["nvml"]], [])

        process = self.machine.run_program()
        state = Path(self.machine.bare["CURB_SIM_STATE"])
        state.rename(self.machine.folder / "elsewhere")
        sees_none(state, process.pid)
        self.assertFalse(state.exists())
        process.kill()

        if os.geteuid() != 0 or why_closed(BUILD / "bin/curb"):
            skipped(why_closed(BUILD / "bin/curb") or "only root can be another user")
            return
        user = 54391
        self.machine.folder.chmod(0o711)
        folder, sockets = self.machine.folder / "of-user", Path(f"/tmp/curb-{user}")
        folder.mkdir()
        os.chown(folder, user, user)
        self.addCleanup(shutil.rmtree, sockets, ignore_errors=True)
        state = folder / "machine"
        environment = self.machine.under_curb(CURB_SIM_STATE=str(state))
        del environment["XDG_RUNTIME_DIR"]
        program = Process(self.machine.program, environment, user=user, group=user)
        self.addCleanup(program.kill)
        program.expect("ready")
        self.assertTrue(within(lambda: list(sockets.glob(f"{program.pid}-*.sock"))))
        self.assertIn(str(program.pid), self.machine.curb("ps").stdout)
        sees_none(state, program.pid)
        state.rename(folder / "elsewhere")
        sees_none(state, program.pid)
        self.assertFalse(state.exists())


if __name__ == "__main__":
    BUILD = Path(sys.argv[1]).resolve()
    run_cases()
