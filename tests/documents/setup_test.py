#!/usr/bin/env python3
"""Setting up says what it does: scripts/setup with stand-ins for apt, and the lines that show how far a compilation is."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MISSING = "ninja-build, nlohmann-json3-dev, libcli11-dev"
HOW = "as root, with apt-get" if os.geteuid() == 0 else "with apt-get through sudo"
STAND_INS = {
    "g++": "echo 12",
    "cmake": "echo cmake version 3.25.1",
    "dpkg-query": 'case "$*" in *nlohmann*|*cli11*) exit 1 ;; *) echo -n installed ;; esac',
    "apt-get": '[ "$1" = update ] && echo "(apt-get $*)" || echo "0 upgraded, 9 newly installed, 0 to remove"',
    "sudo": '[ "$1" = -n ] && shift; exec "$@"',
}


class SetUp(unittest.TestCase):
    def set_up(self, *without):
        """Runs scripts/setup where only the stand-ins and a few programs of this machine are in PATH."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("bash", "dirname", "env", "sed"):
                Path(folder, name).symlink_to(Path("/usr/bin", name))
            for name in STAND_INS.keys() - set(without):
                Path(folder, name).write_text(f"#!/bin/sh\n{STAND_INS[name]}\n")
                Path(folder, name).chmod(0o755)
            return subprocess.run(
                [ROOT / "scripts/setup", "build"], env={"PATH": folder, "JOBS": "1"}, stdin=subprocess.DEVNULL, capture_output=True,
                text=True, check=False,
            )

    def test_it_names_the_missing_packages_and_its_rights_before_it_asks_apt(self):
        run = self.set_up()
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertEqual(run.stdout.splitlines()[:3], [
            f"setup: curb needs 3 packages that are missing here: {MISSING}",
            f"setup: installing them and the dependencies {HOW}",
            "setup: apt-get update",
        ])
        self.assertIn("(apt-get update -qq)\nsetup: apt-get install ninja-build nlohmann-json3-dev libcli11-dev\n", run.stdout)
        self.assertIn("9 newly installed", run.stdout)

    def test_where_there_is_no_apt_get_it_names_them_too(self):
        run = self.set_up("apt-get", "g++")
        self.assertEqual((run.returncode, run.stdout), (1, ""))
        self.assertTrue(run.stderr.startswith(f"setup: curb needs 4 packages that are missing here: {MISSING}, g++ (12 or newer)\n"), run.stderr)

    def test_a_compilation_without_a_terminal_shows_how_far_it_is_before_it_ends(self):
        command = f'source "{ROOT}/scripts/lib/common.sh"; plain_status'
        with subprocess.Popen(["bash", "-c", command, "build"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
            shell.stdin.write("[1/9] Building one\n[2/9] Building another\na compiler's warning\n")
            shell.stdin.flush()
            self.assertEqual(shell.stdout.readline(), "a compiler's warning\n")
            self.assertRegex(shell.stdout.readline(), r"^build: compiling: step 2 of 9, \d+ s$")  # after some seconds
            self.assertEqual(shell.communicate("[3/9] Building a third\nan error")[0], "an error\n")


if __name__ == "__main__":
    unittest.main()
