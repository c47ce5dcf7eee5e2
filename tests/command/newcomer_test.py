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
curb                                  | 0   | Keeps a process's GPU memory within a policy
curb help                             | 0   | Keeps a process's GPU memory within a policy
curb --help                           | 0   | Keeps a process's GPU memory within a policy
curb help run                         | 0   | Run a command under a policy
curb help policy check                | 0   | Check policies, and print every error
curb help nonsense                    | 125 | curb: there is no command 'nonsense'
curb help policy nonsense             | 125 | curb: policy has no command 'nonsense'
curb help release {pid}                 | 0   | Make processes give back memory that they cache
curb help run -- echo hello           | 0   | Run a command under a policy
curb version                          | 0   | curb 0.
curb -V                               | 0   | curb 0.
curb --version                        | 0   | curb 0.
curb --verison                        | 125 | curb: there is no option '--verison'; did you mean --version?
curb top                              | 125 | curb: top needs a terminal; curb ps --watch 2 prints
curb list                             | 125 | curb: there is no command 'list'; did you mean curb ps?
curb relase {pid}                       | 125 | curb: there is no command 'relase'; did you mean curb release?
curb kill {pid}                         | 125 | curb: there is no command 'kill'; to end a process: kill PID; to free
curb pause {pid}                        | 125 | curb: there is no command 'pause'; did you mean curb suspend?
curb -v                               | 125 | curb: '-v' needs a command behind it; for the version: curb -V
curb --color never                    | 125 | curb: '--color' needs a command behind it
curb --colour never ps                | 125 | curb: there is no option '--colour'; did you mean --color?
curb -v policy check {json}             | 0   | {json}: valid
curb --color never policy check {json}  | 0   | {json}: valid
curb --memory 8GiB true               | 125 | curb: there is no option '--memory'
curb top --once                       | 125 | curb: top has no option '--once'; curb ps prints once
curb stop {pid}                         | 125 | curb: there is no command 'stop'; did you mean curb suspend?
curb limit {pid} 8GiB                   | 125 | curb: there is no command 'limit'; did you mean curb cap?
curb check {json}                       | 125 | curb: there is no command 'check'; did you mean curb policy check?
curb true                             | 125 | curb: there is no command 'true'; to run a program: curb run -- true
curb --cap 8GiB true                  | 125 | curb: there is no option '--cap'; it is an option of curb run
curb run                              | 125 | curb: there is no command to run
curb run --cap 8GiB                   | 125 | curb: there is no command to run
curb run --cap                        | 125 | curb: --cap needs a value
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
curb run --capp 8GiB -- true          | 125 | curb: run has no option '--capp'; did you mean --cap?
curb run --memory 8GiB -- true        | 125 | curb: run has no option '--memory'; did you mean --cap?
curb run --limit=8GiB -- true         | 125 | curb: run has no option '--limit=8GiB'; did you mean --cap?
curb run --config job.json -- true    | 125 | curb: run has no option '--config'; did you mean --policy?
curb run --gpu 0 -- true              | 125 | curb: run has no option '--gpu'; CUDA_VISIBLE_DEVICES chooses
curb run -x 8GiB -- true              | 125 | curb: run has no option '-x'
curb run -c 8GiB echo hello           | 0   | hello
curb run -c8GiB echo hello            | 0   | hello
curb run -c 8 -- true                 | 125 | curb: --cap: '8' has no unit; did you mean "8GiB"?
curb run -p no.json -- true           | 125 | curb: {dir}/no.json: there is no such file
curb run -p {json} -p {json} -- true  | 125 | curb: --policy is given more than once; write it once
curb run --cap 1=8GiB -- true         | 125 | curb: --cap: "1" is not a device; did you mean "cuda:1"?
curb run --cap 4GiB --growth 8GiB:1GiB:1s -- true | 125 | curb: --growth: it begins above the cap: 8GiB is more than 4GiB
curb run --cap 0 --growth 1GiB:1GiB:1s -- true | 125 | curb: --cap 0: a cap of nothing refuses every allocation
curb run --color no -- true           | 125 | curb: --color: 'no' is neither auto, always nor never
curb run --wait 30 -- true            | 125 | curb: --wait: '30' has no unit; did you mean "30s"?
curb run --growth 2GiB -- true        | 125 | curb: --growth: '2GiB' is not a growth; write START:STEP:EVERY
curb run --log verbose -- true        | 125 | curb: --log: 'verbose' is not a log level
curb run --trace {old} -- true          | 125 | curb: --trace: '{dir}/old' exists, and a trace begins with a new file
curb run --keep-free 4 -- true        | 125 | curb: --keep-free: '4' has no unit; did you mean "4GiB"?
curb run --job-cap 8 -- true          | 125 | curb: --job-cap: '8' has no unit; did you mean "8GiB"?
curb run --stacks 64 -- true          | 125 | curb: --stacks: '64' has no unit; did you mean "64GiB"?
curb run --stacks 64MiB -- echo hi    | 0   | hi
curb run --sim=perhaps -- true            | 125 | curb: --sim takes no value
curb run -- nonsense-program          | 127 | curb: 'nonsense-program' was not found
curb run -- {dir}                       | 126 | curb: '{dir}' cannot be executed
curb run --dry-run --cap 8GiB -- true | 0   | CURB_CAP=8GiB
curb ps                               | 0   | ?
curb ps {pid}                           | 0   | ?
curb ps all                           | 125 | curb: 'all' is not the pid of a process
curb ps 1                             | 1   | curb: process 1
curb ps -j                            | 0   | ?
curb ps --gpu 1                       | 0   | ?
curb ps --all                         | 125 | curb: ps has no option '--all'; curb ps shows all processes
curb ps -w 0                          | 125 | curb: --watch: '0' is not an interval
curb ps --jsn                         | 125 | curb: ps has no option '--jsn'; did you mean --json?
curb ps --watch fast                  | 125 | curb: --watch: 'fast' is not an interval
curb ps --watch 0                     | 125 | curb: --watch: '0' is not an interval
curb ps --watch 10ms                  | 125 | curb: --watch: '10ms' is not an interval
curb ps 0                             | 125 | curb: '0' is not the pid of a process
curb ps --gpu gpu0                    | 125 | curb: --gpu: "gpu0" is not a device; did you mean "cuda:0"?
curb release                          | 125 | curb: which process? curb release PID, or --all
curb release {pid}                      | 0   | process {pid}: released 0 B
curb release 99999999                 | 1   | curb: there is no process 99999999
curb release --name nonsense          | 125 | curb: no process under curb matches
curb release {pid} --all                | 125 | curb: write either the processes or a description
curb release -- 007                   | 125 | curb: '007' is not the pid of a process
curb release {pid} --step pool          | 125 | curb: --step: 'pool' is not a release step; did you mean "pools"?
curb release {pid} --bytes 75%          | 125 | curb: --bytes 75%: a share of which device?
curb release {pid} --bytes 2            | 125 | curb: --bytes: '2' has no unit; did you mean "2GiB"?
curb release {pid} --bytes 0B           | 125 | curb: --bytes 0 asks for nothing
curb cap {pid}                          | 125 | curb: which cap? curb cap PID SIZE
curb cap 8GiB                         | 125 | curb: of which process? curb cap PID 8GiB
curb cap --reset                      | 125 | curb: of which process? curb cap PID --reset
curb cap {pid} 6GiB                     | 0   | process {pid}: cuda:0 cap 8 GiB -> 6 GiB
curb cap {pid} 5GiB --gpu 0             | 0   | process {pid}: cuda:0 cap 6 GiB -> 5 GiB
curb cap {pid} 5GiB --gpu 7             | 1   | curb: process {pid}: 
curb cap {pid} 6                        | 125 | curb: '6' has no unit; did you mean "6GiB"?
curb cap                              | 125 | curb: which cap? curb cap PID SIZE, or --reset
curb cap x 1GiB                       | 125 | curb: 'x' is not the pid of a process
curb cap {pid} 8Gib                     | 125 | curb: '8Gib' is not a size; did you mean "8GiB"?
curb cap {pid} 8GiB --reset             | 125 | curb: write either a size or --reset, not both
curb cap --all {pid} 8GiB               | 125 | curb: write either the processes or a description
curb cap {pid} 8GiB --gpu gpu0          | 125 | curb: --gpu: "gpu0" is not a device; did you mean "cuda:0"?
curb cap --name nonsense 8GiB         | 125 | curb: no process under curb matches
curb suspend                          | 125 | curb: which process? curb suspend PID
curb nap                              | 125 | curb: which process? curb nap PID
curb nap 1                            | 1   | curb: cannot nap 1
curb nap --timeout 10 1               | 125 | curb: --timeout: '10' has no unit; did you mean "10s"?
curb suspend 1                        | 1   | curb: cannot suspend 1
curb suspend --timeout 0s 1           | 125 | curb: --timeout: 0 would wait for ever; give a time
curb suspend --timeout 10 1           | 125 | curb: --timeout: '10' has no unit; did you mean "10s"?
curb resume --wait 5 1                | 125 | curb: --wait: '5' has no unit; did you mean "5s"?
curb resume --bytes 8 1               | 125 | curb: --bytes: '8' has no unit; did you mean "8GiB"?
curb doctor 99999999999               | 125 | curb: '99999999999' is not the pid of a process
curb doctor {pid}                       | 0   | ok
curb policy                           | 0   | Work with policy files
curb policy chekc {json}                | 125 | curb: policy has no command 'chekc'; did you mean curb policy check?
curb policy check                     | 125 | curb: policy check needs FILE: curb policy check
curb policy check {json}                | 0   | {json}: valid
curb policy explain                   | 125 | curb: there is no command to explain
curb policy explain {json} true         | 125 | curb: policy explain does not expect 'true' before --; a command stands behind it
curb policy explain {json} --           | 125 | curb: there is no command to explain
curb policy init                      | 0   | wrote policy.json
curb policy check policy.json         | 0   | policy.json: valid
curb policy init                      | 125 | curb: 'policy.json' exists already
curb run --policy policy.json -- echo hello | 0 | hello
curb report                           | 125 | curb: report needs TRACE: curb report [OPTIONS] TRACE...
curb report {json}                      | 1   | curb: 
curb replay                           | 125 | curb: replay needs TRACE: curb replay [OPTIONS] TRACE...
curb report -o a.html -o b.html {json}  | 125 | curb: --output is given more than once; write it once
curb report {json} -o run.png           | 125 | curb: 'run.png' does not say what to write
curb report --html {json}               | 125 | curb: report has no option '--html'; write -o run.html
curb replay {json}                      | 125 | curb: there is no policy to replay it under
curb replay --cap 4 {json}              | 125 | curb: --cap: '4' has no unit; did you mean "4GiB"?
curb kernelspec install true          | 125 | curb: kernelspec install does not expect 'true' before --; a command stands
curb kernelspec install --strict -c 4GiB -- true {connection_file} | 0 | wrote
curb metrics --sim                    | 0   | # HELP
curb cdi generate                     | 125 | curb: which caps?
curb release {pid} --sim                | 0   | process {pid}: released 0 B
curb ps --name nosuch                 | 0   | no process matches; curb ps lists all
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

    def test_sim_with_all_reaches_one_machine(self) -> None:
        with Machine(BUILD) as machine, Machine(BUILD) as another:
            mine, other = str(machine.run_program().pid), str(another.run_program().pid)
            self.assertIn(mine, machine.curb("cap", "--sim", "--all", "3GiB").stdout)
            self.assertNotIn("3 GiB", another.curb("ps", other).stdout)
            self.assertIn("3 GiB", machine.curb("ps", mine).stdout)


if __name__ == "__main__":
    BUILD = Path(sys.argv[1]).resolve()
    run_cases()
