#!/usr/bin/env python3
"""mandoc and groff accept the manual pages, and the build fills them in whole: man_test.py BUILD"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from curb_help import commands_of  # noqa: E402
from skipping import has_man, run_cases, skip  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = {"curb.1": "man1", "curb-sim-books.1": "man1", "curb-policy.5": "man5", "curb-preload.8": "man8"}


def ran(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


class Manual(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        for page, section in PAGES.items():
            Path(cls.folder.name, section).mkdir(exist_ok=True)
            built = BUILD / "man" / page
            shutil.copy(built if built.exists() else ROOT / "docs" / "man" / page, Path(cls.folder.name, section))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def rendered(self, page, width):
        file = Path(self.folder.name, PAGES[page], page)
        run = ran("man", "--warnings", "-P", "cat", "-l", file, env={**os.environ, "MANWIDTH": str(width), "LC_ALL": "C.UTF-8"})
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return re.sub(r"\x1b\[[0-9;]*m|.\x08", "", run.stdout)

    def test_mandoc_has_nothing_to_say(self):
        # mandoc looks for referenced pages among the installed ones. Ours refer to each other.
        ours = re.compile(r"referenced manual not found: Xr (curb 1|curb-policy 5)\b")
        for page, section in PAGES.items():
            run = ran("mandoc", "-T", "lint", Path(self.folder.name, section, page))
            said = [line for line in (run.stdout + run.stderr).splitlines() if not ours.search(line)]
            self.assertEqual(said, [])

    def test_groff_has_nothing_to_say_and_all_of_it_fits(self):
        for page in PAGES:
            text = self.rendered(page, 80)
            self.assertNotIn("BSD", text)
            for line in text.splitlines():
                self.assertLessEqual(len(line), 80, page)

    def test_what_is_generated_is_not_read_as_a_request(self):
        text = re.sub(r"\s+", " ", self.rendered("curb-policy.5", 80))
        for part in ('"*"', "\\ before a mark", "expandable_segments:True", '"%p" stands for the pid'):
            self.assertIn(part, text)
        self.assertIn("""jq '.findings[] | select(.result == "problem")'""", self.rendered("curb.1", 200))

    def test_every_command_option_and_field_is_in_them(self):
        one, five = (re.sub(r"\s+", " ", self.rendered(page, 200)) for page in ("curb.1", "curb-policy.5"))
        for command in commands_of(BUILD / "bin/curb").all():
            if not command.commands:
                self.assertIn(command.name, one)
                for spelling in command.spellings():
                    self.assertIn(spelling, one)
        fields = re.findall(r'^CURB_\w+_FIELD\("[^"]*/([^/"]+)"', (ROOT / "policy/include/policy/fields.def").read_text(), re.MULTILINE)
        self.assertGreater(len(fields), 30)
        for field in fields:
            self.assertIn(f" {field} (", five)

    def test_sections_are_those_that_readers_look_for(self):
        for page, wanted in {
            "curb.1": "NAME SYNOPSIS DESCRIPTION COMMANDS SIGNALS ENVIRONMENT FILES EXAMPLES BUGS",
            "curb-policy.5": "NAME DESCRIPTION DEVICES RELEASE FRAMEWORKS RULES FILES EXAMPLES",
        }.items():
            lines = self.rendered(page, 80).splitlines()
            for section in wanted.split():
                self.assertIn(section, lines)


if __name__ == "__main__":
    BUILD = Path(sys.argv[1]).resolve()
    if not shutil.which("mandoc") or not has_man():
        skip("mandoc or man is not here (scripts/setup test)")
    run_cases()
