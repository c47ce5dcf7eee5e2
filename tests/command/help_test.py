#!/usr/bin/env python3
"""The help of every command: help_test.py BUILD

Finds the commands in `curb --help`, so that new commands are tested too.
"""

import re
import shlex
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "common"))
from curb_help import commands_of, misuse  # noqa: E402

WIDTH = 80


def curb(*words):
    return subprocess.run([CURB, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def commands():
    return list(commands_of(CURB).all())


def leaves():
    return [command for command in commands() if not command.commands]


def invocations(line):
    """Returns the words of each `curb …` in a line of shell, up to `--`."""
    words = shlex.split(line.replace(";", " ; ").replace("|", " | ").replace(">", " > "), comments=False)
    found, current = [], None
    for word in [*words, ";"]:
        if word in (";", "|", ">", "&&", "<"):
            if current:
                found.append(current)
            current = None
        elif current is not None:
            current.append(word)
        elif word == "curb":
            current = []
        elif "=" not in word:  # NAME=VALUE may stand before curb
            current = None
    return [words[: words.index("--")] if "--" in words else words for words in found]


class Help(unittest.TestCase):
    def test_every_command_has_its_usage_and_examples(self):
        self.assertGreater(len(leaves()), 5)
        for command in commands():
            with self.subTest(command.name):
                self.assertTrue(command.usage.startswith(command.name + " "), command.usage)
                self.assertNotIn(":", command.usage)
                own = [line for line, _ in command.examples if re.search(rf"\b{command.name}\b", line)]
                self.assertTrue(own, f"no example in the help of {command.name} has {command.name} in it")

    def test_it_fits_a_terminal(self):
        for command in commands():
            for line in command.text.splitlines():
                self.assertLessEqual(len(line), WIDTH, f"{command.name}: {line}")
                self.assertEqual(line, line.rstrip(), command.name)
            self.assertNotIn("\n\n\n", command.text, command.name)

    def test_examples_name_commands_and_options_that_there_are(self):
        root, checked = commands_of(CURB), 0
        for command in commands():
            for line, _ in command.examples:
                for words in invocations(line):
                    with self.subTest(line):
                        self.assertIsNone(misuse(root, words))
                        checked += 1
        self.assertGreater(checked, 20)

    def test_options_are_described_in_words(self):
        for command in commands():
            for left, right in [*command.options, *command.arguments]:
                with self.subTest(f"{command.name} {left}"):
                    self.assertGreater(len(right), 5)
                    value = left.partition(" ")[2].removesuffix("...")
                    self.assertTrue(not value or value.isupper(), f"what does {value} stand for?")

    def test_commands_that_read_answer_programs_too(self):
        silent = {"curb run", "curb metrics", "curb policy schema", "curb policy init", "curb top"}
        # run becomes another program, metrics and policy schema print for programs, policy init writes a file, top is a screen.
        for command in leaves():
            if command.name not in silent:
                self.assertIn("--json", command.spellings(), command.name)

    def test_wrong_usage_names_the_right_help(self):
        for command in commands():
            with self.subTest(command.name):
                wrong = curb(*command.words[1:], "--no-such-option")
                self.assertEqual(wrong.returncode, 125)
                self.assertEqual(wrong.stdout, "")
                self.assertTrue(wrong.stderr.endswith(f"curb: see {command.name} --help\n"), wrong.stderr)


if __name__ == "__main__":
    CURB = sys.argv.pop(1) + "/bin/curb"
    unittest.main()
