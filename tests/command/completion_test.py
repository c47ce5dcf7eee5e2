#!/usr/bin/env python3
"""Completion in bash, and in fish and zsh if they are installed: completion_test.py BUILD

Most tests call the function as bash calls it, in shells with `set -u`. Some press TAB in a terminal.
"""

import os
import pty
import re
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from curb_help import commands_of  # noqa: E402
from simulated import Machine  # noqa: E402
from skipping import run_cases, skip  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
COMPLETION = ROOT / "completion" / "curb.bash"
BASH_COMPLETION = Path("/usr/share/bash-completion/bash_completion")

DRIVE = r"""
source "$1"; shift
COMP_LINE=$1 COMP_POINT=$2 COMP_CWORD=$3 COMP_TYPE=${4:-9}; shift 4
COMP_WORDS=("$@")
COMPREPLY=()
_curb "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" ''
for one in ${COMPREPLY[@]+"${COMPREPLY[@]}"}; do printf '%s\n' "$one"; done
"""


def words_of(line):
    """Splits a line without quotes as readline does."""
    return re.findall(r"[:=]+|(?:\\.|[^\s:=])+", line)


def driven(words, at, text, point, before="set -u", kind="9", environment=None, script=DRIVE):
    """Calls the function as bash does, with the line's text and words. Returns its candidates for word number `at`."""
    command = ["bash", "-c", f"{before}\n{script}", "bash", COMPLETION, text, str(point), str(at), kind, *words]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})})
    if run.returncode or run.stderr:
        raise AssertionError(f"{text!r}: {run.returncode}: {run.stderr}")
    return run.stdout.splitlines()


def completed(line, point=None, curb=None, **options):
    point = len(line) if point is None else point
    words = words_of(line)
    up_to = words_of(line[:point])
    at = len(up_to) - 1
    if line[point - 1].isspace():
        at += 1
        if point == len(line):
            words.append("")
        elif line[point].isspace():
            words.insert(at, "")
    words[0] = str(curb or CURB)
    shift = len(words[0]) - len("curb")
    return driven(words, at, words[0] + line[4:], point + shift, **options)


def unbroken(line, **options):
    """Completes the end of a line that is split at blanks only."""
    words = [str(CURB), *line.split()[1:], *([""] if line.endswith(" ") else [])]
    text = " ".join(words)
    return driven(words, len(words) - 1, text, len(text), **options)


RUN = [
    "--cap", "--color", "--dry-run", "--growth", "--help", "--job-cap", "--keep-free", "--log", "--nap", "--policy", "--quiet",
    "--sim", "--stacks", "--steer", "--strict", "--trace", "--turn", "--verbose", "--wait",
]  # fmt: skip

FREE = {"SIZE", "[KEY=]SIZE", "START:STEP:EVERY", "TIME", "DURATION", "[SECONDS]", "TEXT", "LANGUAGE", "USERS", "NAME", "JOB"}
"""Values that people make up, or that only a process could tell."""
OF_PROCESSES = {"PID", "GLOB"}
"""Values that may be none, because no process runs."""


class Words(unittest.TestCase):
    def test_commands(self):
        self.assertTrue({"run", "release", "policy", "metrics"} <= set(completed("curb ")))
        self.assertEqual(completed("curb metr"), ["metrics"])
        self.assertEqual(sorted(completed("curb policy ")), ["check", "explain", "init", "schema", "show"])
        self.assertEqual(completed("curb policy ch"), ["check"])
        self.assertEqual(completed("curb nonsense "), [])
        self.assertEqual(completed("curb nonsense --"), [])

    def test_options_are_those_of_the_command(self):
        self.assertEqual(sorted(completed("curb run --")), RUN)
        self.assertEqual(completed("curb run --dr"), ["--dry-run"])
        self.assertEqual(completed("curb policy check --j"), ["--json"])
        self.assertIn("--version", completed("curb -"))
        self.assertNotIn("--version", completed("curb run -"))

    def test_every_value_that_curb_knows(self):
        shapes = set()
        for command in commands_of(CURB).all():
            for left, _ in command.options:
                names, _, shape = left.removesuffix("...").partition(" ")
                if not shape:
                    continue
                shapes.add(shape)
                for name in names.split(","):
                    line = [CURB, "--complete", *command.words[1:], name, ""]
                    offered = subprocess.run(line, capture_output=True, text=True, check=True).stdout.splitlines()
                    if shape not in OF_PROCESSES:
                        self.assertEqual(not offered, shape in FREE and name != "--step", line)
        self.assertTrue(FREE | OF_PROCESSES | {"FILE", "WHEN", "USER", "KEY"} <= shapes, shapes)
        self.assertEqual(completed("curb --color "), ["auto  (on a terminal)", "always", "never"])
        self.assertEqual(completed("curb --color never po"), ["policy"])
        self.assertEqual(completed("curb run -vp no-such-f"), [])
        self.assertEqual(completed("curb run --log w"), ["warning"])
        self.assertEqual(completed("curb run --log t"), ["trace"])

    def test_help(self):
        self.assertEqual(set(completed("curb help ")) | {"help", "version"}, set(completed("curb ")))
        self.assertEqual(sorted(completed("curb help policy ")), ["check", "explain", "init", "schema", "show"])
        self.assertEqual(completed("curb help policy check "), [])
        self.assertEqual(completed("curb he"), ["help"])

    def test_keys_of_gpus(self):
        self.assertTrue({"cuda:0", "nvml:0", "\\*"} <= set(completed("curb cap 1 8GiB --gpu ")))
        # Readline replaces only the part behind the colon.
        self.assertEqual(completed("curb cap 1 8GiB --gpu nvml:")[:1], ["0"])
        self.assertEqual(completed("curb cap 1 8GiB --gpu=nv")[:1], ["nvml:0"])
        self.assertEqual(completed("curb cap 1 8GiB --gpu=nvml:")[:1], ["0"])
        for line in ("curb cap 1 ", "curb run --cap ", "curb release --bytes 8", "curb resume --wait "):
            # Sizes and times. PIDs, with the names of two or more, are those of tests beside this one.
            self.assertEqual([word for word in completed(line) if not word.split()[0].isdigit()], [])
        no_breaks = "set -u; COMP_WORDBREAKS=$' \\t\\n'"
        self.assertIn("--gpu=nvml:0", unbroken("curb cap 1 8GiB --gpu=", before=no_breaks))

    def test_release_steps(self):
        steps = re.findall(r"^CURB_STEP\((\w+)", (ROOT / "policy/include/policy/release_steps.def").read_text(), re.MULTILINE)
        self.assertEqual(sorted(completed("curb release --step ")), sorted(steps))
        self.assertEqual(completed("curb release --step po"), ["pools"])
        self.assertEqual(completed("curb release --step=po"), ["pools"])
        self.assertEqual(completed("curb release 1 --step pools --step pr"), ["pressure"])

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "job.json").touch()
            for line in ("curb run --policy", "curb policy check", "curb policy show", "curb metrics --textfile"):
                self.assertEqual(completed(f"{line} {folder}/jo"), [f"{folder}/job.json"])
            self.assertEqual(completed(f"curb policy check {folder}/x {folder}/jo"), [f"{folder}/job.json"])
            self.assertEqual(completed(f"curb policy show {folder}/x {folder}/jo"), [])  # it takes one file

    def test_in_the_middle_of_a_line(self):
        for line, before, words in (
            ("curb release --st po 4711", " po", ["--step"]),
            ("curb pol check job.json", " check", ["policy"]),
            ("curb run --cap 8GiB --drabcd -- true", "abcd", ["--dry-run"]),
        ):
            self.assertEqual(completed(line, point=line.index(before)), words)

    def test_a_missing_curb_completes_nothing(self):
        self.assertEqual(completed("curb ", curb="/nonexistent/curb", environment={"PATH": "/usr/bin:/bin"}), [])


class Commands(unittest.TestCase):
    def test_the_command_of_run_completes_as_commands_do(self):
        self.assertIn("printf", completed("curb run --cap 8GiB -- print"))
        self.assertIn("printf", completed("curb run --cap 8GiB print"))
        self.assertNotIn("--cap", completed("curb run -- ls --c"))
        self.assertEqual(completed("curb run --policy -- --dr"), [])  # for curb the command begins there too
        self.assertIn("printf", completed("curb policy explain job.json -- print"))
        self.assertIn("printf", completed("curb kernelspec install --name r -- print"))
        self.assertEqual(completed("curb policy check -- --js"), [])

    @unittest.skipUnless(BASH_COMPLETION.exists(), "bash-completion is not installed")
    def test_with_bash_completion_its_arguments_too(self):
        before = f"source {BASH_COMPLETION}; _theirs() {{ COMPREPLY=(\"theirs-$COMP_CWORD-${{COMP_WORDS[0]}}\"); }}; complete -F _theirs train"
        self.assertEqual(completed("curb run --cap 8GiB -- train --lr ", before=before), ["theirs-2-train"])
        self.assertEqual(completed("curb run --cap=8GiB train x", before=before), ["theirs-1-train"])
        self.assertEqual(completed("curb policy explain -- train x", before=before), ["theirs-1-train"])
        self.assertEqual(completed("curb policy ch", before=before), ["check"])


class Processes(unittest.TestCase):
    def test_pids_with_their_names(self):
        with Machine(BUILD) as machine:
            environment = {"XDG_RUNTIME_DIR": str(machine.runtime)}
            one, other = machine.run_program(), machine.run_program()
            offered = completed("curb release ", environment=environment)
            for process in (one, other):
                self.assertIn(f"{process.pid}  (scenarios)", offered)
            # No name behind a single candidate, nor for keys that insert candidates into the line.
            self.assertEqual(completed(f"curb release {one.pid}", environment=environment), [str(one.pid)])
            self.assertIn(str(one.pid), completed("curb release ", kind="37", environment=environment))
            self.assertNotIn(str(one.pid), " ".join(completed("curb resume ", environment=environment)))
            self.assertEqual(completed("curb doctor 1 ", environment=environment), [])

    def test_folders_with_blanks(self):
        with tempfile.TemporaryDirectory(prefix="with blank ") as folder:
            Path(folder, "curb").mkdir(mode=0o700)
            Path(folder, "curb", f"{os.getpid()}-1.sock").touch()
            Path(folder, "curb", f"{os.getpid()}-1.suspended.json").touch()
            Path(folder, "curb", "999999999-1.sock").touch()  # of a dead process
            environment = {"XDG_RUNTIME_DIR": folder}
            self.assertEqual(completed(f"curb release {os.getpid()}", environment=environment), [str(os.getpid())])
            self.assertEqual(completed("curb release 99999999", environment=environment), [])
            self.assertEqual(completed(f"curb resume {os.getpid()}", environment=environment), [str(os.getpid())])


class Speed(unittest.TestCase):
    def test_a_completion_takes_less_than_50_ms_of_work(self):
        for line in ("curb ", "curb policy check --j", "curb release --step "):
            script = DRIVE.replace("_curb \"", "for i in {1..10}; do COMPREPLY=(); _curb \"").replace(" ''\n", " ''; done\n")
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            unbroken(line, script=script)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            each = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 10
            self.assertLess(each, 0.05, line)


def shown_in_a_terminal(shell, environment, folder, setup, keys):
    """Types the keys into a shell, and returns the lines that it then writes to the file `.shown` of the folder."""
    shown = Path(folder, ".shown")
    shown.unlink(missing_ok=True)
    parent, child = pty.openpty()
    with subprocess.Popen(shell, stdin=child, stdout=child, stderr=child, cwd=folder, env=environment, start_new_session=True) as started:
        os.close(child)
        said, deadline = b"", time.monotonic() + 60

        def read_until(reached):
            nonlocal said
            while not reached() and time.monotonic() < deadline:
                if select.select([parent], [], [], 0.05)[0]:
                    said += os.read(parent, 4096)

        # Wait for the second prompt: only then the shell reads the keys.
        os.write(parent, f"{setup} PS1='re''ady> '\n".encode())
        read_until(lambda: b"ready> " in said)
        os.write(parent, f"{keys}\n".encode())
        read_until(shown.exists)
        started.kill()
    os.close(parent)
    assert shown.exists(), said.decode()
    return shown.read_text().splitlines()


class Terminal(unittest.TestCase):
    """Presses TAB in a terminal, and has the shell run the completed line."""

    def typed(self, keys, folder, setup=""):
        bin_folder = Path(folder, ".bin")
        bin_folder.mkdir(exist_ok=True)
        # This `curb` passes the calls of the completion to the real one, and writes the words of other calls to a file.
        script = bin_folder / "curb"
        script.write_text(
            f'#!/bin/bash\nif [[ ${{1-}} == --complete ]]; then exec {CURB} "$@"; fi\n'
            f'printf "%s\\n" "$@" >{folder}/.shown.new; mv {folder}/.shown.new {folder}/.shown\n'
        )
        script.chmod(0o755)
        environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "TERM": "dumb", "PS1": "$ ", "INPUTRC": "/dev/null"}
        setup = f"set -u; {setup} source {COMPLETION};"
        return shown_in_a_terminal(["bash", "--norc", "--noprofile", "-i"], environment, folder, setup, keys)

    def test_a_tab_completes_the_command_and_its_option(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.typed("curb pol\tch\t--js\t", folder), ["policy", "check", "--json"])

    def test_files_with_blanks_are_quoted(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "my job.json").touch()
            self.assertEqual(self.typed("curb policy check my\t", folder), ["policy", "check", "my job.json"])
            self.assertEqual(self.typed('curb run --policy "my j\t-- x', folder), ["run", "--policy", "my job.json", "--", "x"])
            self.assertEqual(self.typed("curb metrics --textfile=my\t", folder), ["metrics", "--textfile=my job.json"])

    @unittest.skipUnless(BASH_COMPLETION.exists(), "bash-completion is not installed")
    def test_behind_the_dashes_with_bash_completion(self):
        with tempfile.TemporaryDirectory() as folder:
            setup = f"set +u; source {BASH_COMPLETION}; complete -W 'alpha beta' train;"
            self.assertEqual(self.typed("curb run -- train al\t", folder, setup), ["run", "--", "train", "alpha"])


class Fish(unittest.TestCase):
    """Asks fish for the candidates of a line: complete -C."""

    def offered(self, *lines, **more):
        script = f"source {COMPLETION.parent / 'curb.fish'}\n" + "\n".join(f"complete -C '{line}'; echo ====" for line in lines)
        environment = {**os.environ, "PATH": f"{CURB.parent}:{os.environ['PATH']}", "HOME": self.folder, **more}
        run = subprocess.run(["fish", "-c", script], capture_output=True, text=True, check=False, env=environment, cwd=self.folder)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return [[line.split("\t")[0] for line in answer.splitlines()] for answer in run.stdout.split("====\n")[:-1]]

    @unittest.skipUnless(shutil.which("fish"), "fish is not here (scripts/setup test)")
    def test_commands_options_files_and_the_command_of_run(self):
        with tempfile.TemporaryDirectory() as self.folder:
            Path(self.folder, "my job.json").touch()
            commands, policy, check, option, options, value, file, command, argument, none, key, step = self.offered(
                "curb ", "curb policy ", "curb policy ch", "curb run --dr", "curb run --", "curb run --policy my",
                "curb policy check my", "curb run --cap 1GiB -- comm", "curb run -- ls --alm", "curb run --cap ",
                "curb cap 1 8GiB --gpu cu", "curb release --step=po",
            )  # fmt: skip
        self.assertTrue({"run", "release", "policy", "metrics"} <= set(commands))
        self.assertEqual(sorted(policy), ["check", "explain", "init", "schema", "show"])
        self.assertEqual((check, option), (["check"], ["--dry-run"]))
        self.assertEqual(sorted(options), RUN)
        self.assertEqual((value, file), (["my job.json"], ["my job.json"]))
        self.assertIn("command", command)
        self.assertIn("--almost-all", argument)
        self.assertEqual((none, step), ([], ["--step=pools"]))
        self.assertIn("cuda:0", key)

    @unittest.skipUnless(shutil.which("fish"), "fish is not here (scripts/setup test)")
    def test_pids(self):
        with tempfile.TemporaryDirectory() as self.folder, Machine(BUILD) as machine:
            process = machine.run_program()
            offered = self.offered("curb release ", XDG_RUNTIME_DIR=str(machine.runtime))
        self.assertIn(str(process.pid), offered[0])


class Zsh(unittest.TestCase):
    """Presses TAB in a terminal: zsh has no other way to ask for candidates."""

    def typed(self, keys):
        """Returns the words of the line after completion."""
        environment = {**os.environ, "PATH": f"{CURB.parent}:{os.environ['PATH']}", "HOME": self.folder, "TERM": "dumb"}
        setup = f"fpath=({COMPLETION.parent} $fpath); autoload -Uz compinit && compinit -u -D;"
        # Ctrl-A and Ctrl-E: puts a command that prints the words around the line.
        keys += "\x01print -l -- \x05 >.shown.new && mv .shown.new .shown"
        return shown_in_a_terminal(["zsh", "-f", "-i"], environment, self.folder, setup, keys)

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not here (scripts/setup test)")
    def test_commands_options_files_and_the_command_of_run(self):
        with tempfile.TemporaryDirectory() as self.folder:
            Path(self.folder, "my job.json").touch()
            self.assertEqual(self.typed("curb poli\tch\t--js\t"), ["curb", "policy", "check", "--json"])
            self.assertEqual(self.typed("curb run --pol\tmy\t-- ls --almost\tmy\t"),
                             ["curb", "run", "--policy", "my job.json", "--", "ls", "--almost-all", "my job.json"])  # fmt: skip


if __name__ == "__main__":
    if not shutil.which("bash"):
        skip("there is no bash")
    BUILD = Path(sys.argv[1]).resolve()
    CURB = BUILD / "bin/curb"
    run_cases()
