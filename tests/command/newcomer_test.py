#!/usr/bin/env python3
"""Commands that a newcomer may type, right and wrong: newcomer_test.py BUILD

Each row: the words, the exit status, and how the first line of stdout begins (of stderr if the status is not 0; ?: any).
{pid} is a program under curb, {json} a policy, {old} a file and {dir} a folder.
"""

import shlex
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from simulated import Machine  # noqa: E402
from skipping import run_cases  # noqa: E402

ROWS = """
curb                                  | 125 | curb: curb needs a command: run, ps,
curb help                             | 0   | Keeps a process's GPU memory within a policy
curb --help                           | 0   | Keeps a process's GPU memory within a policy
curb help run                         | 0   | Run a command under a policy
curb help policy check                | 0   | Check policies, and print every error
curb help nonsense                    | 125 | curb: curb has no command 'nonsense'
curb help policy nonsense             | 125 | curb: curb policy has no command 'nonsense'
curb help release {pid}                 | 0   | Make processes give back memory that they cache
curb help run -- echo hello           | 0   | Run a command under a policy
curb version                          | 0   | curb 0.
curb -V                               | 0   | curb 0.
curb --version                        | 0   | curb 0.
curb --verison                        | 125 | curb: curb has no option '--verison'; did you mean --version?
curb top                              | 125 | curb: top: it needs a terminal; curb ps --watch 2 prints
curb list                             | 125 | curb: curb has no command 'list'; did you mean curb ps?
curb relase {pid}                       | 125 | curb: curb has no command 'relase'; did you mean curb release?
curb stop {pid}                         | 125 | curb: curb has no command 'stop'; did you mean curb suspend?
curb limit {pid} 8GiB                   | 125 | curb: curb has no command 'limit'; did you mean curb cap?
curb check {json}                       | 125 | curb: curb has no command 'check'; did you mean curb policy check?
curb true                             | 125 | curb: curb has no command 'true'; to run a program: curb run -- true
curb --cap 8GiB true                  | 125 | curb: curb has no option '--cap'; it is an option of curb run
curb run                              | 125 | curb: run: there is no command to run
curb run --cap 8GiB                   | 125 | curb: run: there is no command to run
curb run --cap                        | 125 | curb: curb run: --cap needs a value
curb run echo hello                   | 0   | hello
curb run -- echo hello                | 0   | hello
curb run --cap 8GiB echo hello        | 0   | hello
curb run --cap 8G -- echo hello       | 0   | hello
curb run --cap 75% -- echo hello      | 0   | hello
curb run --cap cuda:0=8GiB -- echo hi | 0   | hi
curb run --cap 8 -- true              | 125 | curb: --cap: '8' has no unit; did you mean "8GiB"?
curb run --cap 8GB -- true            | 125 | curb: --cap: '8GB' is not a size; did you mean "8GiB"?
curb run --cap 8 GiB -- true          | 125 | curb: '8 GiB' is two words, and a value is one: write 8GiB
curb run --cap -1GiB -- true          | 125 | curb: --cap: -1GiB: sizes are not negative
curb run --cap 200% -- true           | 125 | curb: --cap: '200%' is more than the device has
curb run --cap=gpu0=8GiB -- true      | 125 | curb: --cap: "gpu0" is not a device; did you mean "cuda:0"?
curb run --capp 8GiB -- true          | 125 | curb: curb run has no option '--capp'; did you mean --cap?
curb run --memory 8GiB -- true        | 125 | curb: curb run has no option '--memory'
curb run --wait 30 -- true            | 125 | curb: --wait: '30' has no unit; did you mean "30s"?
curb run --growth 2GiB -- true        | 125 | curb: --growth: '2GiB' is not a growth; write START:STEP:EVERY
curb run --log verbose -- true        | 125 | curb: --log: 'verbose' is not a log level
curb run --trace {old} -- true          | 125 | curb: --trace: '{dir}/old' exists, and a trace begins with a new file
curb run --keep-free 4 -- true        | 125 | curb: --keep-free: '4' has no unit; did you mean "4GiB"?
curb run --job-cap 8 -- true          | 125 | curb: --job-cap: '8' has no unit; did you mean "8GiB"?
curb run --stacks 64 -- true          | 125 | curb: --stacks: '64' has no unit; did you mean "64GiB"?
curb run --stacks 64MiB -- echo hi    | 0   | hi
curb run --sim=perhaps -- true            | 125 | curb: curb run: --sim takes no value
curb run --policy no.json -- true     | 125 | curb: {dir}/no.json: there is no such file
curb run -- nonsense-program          | 127 | curb: 'nonsense-program' was not found
curb run -- {dir}                       | 126 | curb: '{dir}' cannot be executed
curb run --dry-run --cap 8GiB -- true | 0   | CURB_CAP=8GiB
curb ps                               | 0   | ?
curb ps {pid}                           | 0   | ?
curb ps all                           | 125 | curb: 'all' is not the pid of a process
curb ps 1                             | 1   | curb: process 1
curb ps --jsn                         | 125 | curb: curb ps has no option '--jsn'; did you mean --json?
curb ps --watch fast                  | 125 | curb: ps: --watch: 'fast' is not an interval
curb ps --watch 0                     | 125 | curb: ps: --watch: '0' is not an interval
curb ps --watch 10ms                  | 125 | curb: ps: --watch: '10ms' is not an interval
curb ps 0                             | 125 | curb: '0' is not the pid of a process
curb ps --gpu gpu0                    | 125 | curb: ps: --gpu: "gpu0" is not a device; did you mean "cuda:0"?
curb release                          | 125 | curb: release: which process? curb release PID, or --all
curb release {pid}                      | 0   | process {pid}: released 0 B
curb release 99999999                 | 1   | curb: there is no process 99999999
curb release --name nonsense          | 125 | curb: release: no process under curb matches
curb release {pid} --all                | 125 | curb: release: write either the processes or a description
curb release -- 007                   | 125 | curb: '007' is not the pid of a process
curb release {pid} --step pool          | 125 | curb: release: --step: 'pool' is not a release step; did you mean "pools"?
curb release {pid} --bytes 75%          | 125 | curb: release: --bytes 75%: a share of which device?
curb release {pid} --bytes 2            | 125 | curb: release: --bytes: '2' has no unit; did you mean "2GiB"?
curb release {pid} --bytes 0B           | 125 | curb: release: --bytes 0 asks for nothing
curb cap {pid}                          | 125 | curb: cap: which cap? curb cap PID SIZE
curb cap 8GiB                         | 125 | curb: cap: of which process? curb cap PID 8GiB
curb cap --reset                      | 125 | curb: cap: of which process? curb cap PID --reset
curb cap {pid} 6GiB                     | 0   | process {pid}: cuda:0 cap 8 GiB -> 6 GiB
curb cap {pid} 6                        | 125 | curb: cap: '6' has no unit; did you mean "6GiB"?
curb cap                              | 125 | curb: cap: which cap? curb cap PID SIZE, or --reset
curb cap x 1GiB                       | 125 | curb: cap: 'x' is not the pid of a process
curb cap {pid} 8Gib                     | 125 | curb: cap: '8Gib' is not a size; did you mean "8GiB"?
curb cap {pid} 8GiB --reset             | 125 | curb: cap: write either a size or --reset, not both
curb cap --all {pid} 8GiB               | 125 | curb: cap: write either the processes or a description
curb cap {pid} 8GiB --gpu gpu0          | 125 | curb: cap: --gpu: "gpu0" is not a device; did you mean "cuda:0"?
curb cap --name nonsense 8GiB         | 125 | curb: cap: no process under curb matches
curb suspend                          | 125 | curb: suspend: which process? curb suspend PID
curb suspend 1                        | 1   | curb: cannot suspend 1
curb suspend --timeout 0s 1           | 125 | curb: suspend: --timeout: 0 would wait for ever; give a time
curb suspend --timeout 10 1           | 125 | curb: suspend: --timeout: '10' has no unit; did you mean "10s"?
curb resume --wait 5 1                | 125 | curb: resume: --wait: '5' has no unit; did you mean "5s"?
curb resume --bytes 8 1               | 125 | curb: resume: --bytes: '8' has no unit; did you mean "8GiB"?
curb doctor 99999999999               | 125 | curb: '99999999999' is not the pid of a process
curb doctor {pid}                       | 0   | ok
curb policy                           | 125 | curb: curb policy needs a command: init, check, show, explain, schema
curb policy chekc {json}                | 125 | curb: curb policy has no command 'chekc'; did you mean curb policy check?
curb policy check                     | 125 | curb: FILE is required
curb policy check {json}                | 0   | {json}: valid
curb policy explain                   | 125 | curb: policy explain: there is no command to explain
curb policy explain {json} --           | 125 | curb: policy explain: there is no command to explain
curb policy init                      | 0   | wrote policy.json
curb policy check policy.json         | 0   | policy.json: valid
curb policy init                      | 125 | curb: 'policy.json' exists already
curb run --policy policy.json -- echo hello | 0 | hello
curb report                           | 125 | curb: TRACE is required
curb report {json}                      | 1   | curb: report:
curb replay                           | 125 | curb: TRACE is required
"""


class Newcomer(unittest.TestCase):
    def test_what_they_get(self) -> None:
        rows = [[cell.strip() for cell in row.split("|")] for row in ROWS.strip().splitlines()]
        self.assertGreaterEqual(len(rows), 60)
        with Machine(BUILD) as machine:
            process = machine.run_program()
            folder = machine.folder / "home"
            folder.mkdir()
            (folder / "job.json").write_text('{"version": 1}')
            (folder / "old").touch()
            names = {"{pid}": str(process.pid), "{json}": "job.json", "{old}": "old", "{dir}": str(folder)}

            def named(text: str) -> str:
                for name, value in names.items():
                    text = text.replace(name, value)
                return text

            for words, status, beginning in rows:
                with self.subTest(words):
                    run = machine.curb(*shlex.split(named(words))[1:], cwd=folder)
                    self.assertEqual(run.returncode, int(status), run.stderr)
                    answer = run.stdout if run.returncode == 0 else run.stderr
                    if run.returncode == 125:
                        self.assertEqual(run.stdout, "")
                    first = answer.splitlines()[0] if answer else ""
                    if beginning != "?":
                        self.assertTrue(first.startswith(named(beginning)), f"{first!r} does not begin with {beginning!r}")
                    self.assertNotEqual(first, "")


if __name__ == "__main__":
    BUILD = Path(sys.argv[1]).resolve()
    run_cases()
