#!/usr/bin/env python3
"""Types the tutorial of docs/GUIDE.md on the simulated driver: tutorial_test.py CURB

Runs the lines behind `$` of its blocks ```console in one bash, in an empty folder with the tutorial's train.py. Each line of
output that the document shows must come, in that order: `…` stands for anything, 4711 for the pid of the program in the
background, `you` for the user, 12:30:04 for a time. `curb ps` is typed again until the program has come so far.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

GUIDE = Path(__file__).resolve().parent.parent.parent / "docs" / "GUIDE.md"
END = "-- end of the output --"
SECONDS = 30


def tutorial():
    text = GUIDE.read_text(encoding="utf-8")
    return text[text.index("\n## Ten minutes\n") : text.index("\n## Giving memory back\n")]


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", tutorial(), re.MULTILINE | re.DOTALL)


def typed():
    """Yields each line to type, and the lines that are shown below it."""
    for block in blocks("console"):
        for one in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = one.splitlines()
            yield command, shown


def pattern(line, pid):
    """Returns a regular expression for a line that is shown."""
    stands_for = {"…": ".*", "4711": pid or r"\d+", "you": r"\S+", "12:30:04": r"[\d:]+"}
    parts = re.split(r"(…|\b4711\b|\byou\b|\b12:30:04\b|\s+)", line.strip())
    return "".join(r"\s*" if part.isspace() else stands_for.get(part, re.escape(part)) for part in parts)


class Shell:
    def __init__(self, curb, folder):
        (folder / "run").mkdir(mode=0o700)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CURB_", "XDG_"))}
        environment = {**kept, "PATH": f"{curb.parent}:{kept['PATH']}", "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder / "run")}
        self.folder, self.pid = folder, ""
        self.bash = subprocess.Popen(
            ["bash"], cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def type(self, command):
        """Returns the output. A command in the background has then taken its memory."""
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        self.bash.stdin.write(command.replace("4711", self.pid) + f"\necho; echo {END}\n")
        self.bash.stdin.flush()
        output = "".join(iter(self.bash.stdout.readline, END + "\n"))
        if command.endswith("&"):
            self.bash.stdin.write("echo $!\n")
            self.bash.stdin.flush()
            while not (line := self.bash.stdout.readline().strip()).isdigit():
                pass
            self.pid = line
            until = time.monotonic() + SECONDS
            while not (log.exists() and "step 1:" in log.read_text()) and time.monotonic() < until:
                time.sleep(0.02)
        return output

    def end(self):
        self.bash.stdin.write("kill $(jobs -p) 2>/dev/null\n")
        self.bash.communicate()


class Tutorial(unittest.TestCase):
    def missing(self, output, shown, pid):
        """Returns the first line of `shown` that is not in the output, behind those before it."""
        at = 0
        for line in shown:
            found = re.compile(pattern(line, pid)).search(output, at)
            if not found:
                return line
            at = found.end()
        return None

    def test_each_command_prints_what_the_guide_shows(self):
        with tempfile.TemporaryDirectory(prefix="curb-") as folder:
            (program,) = blocks("python")
            Path(folder, "train.py").write_text(program)
            shell, count = Shell(CURB, Path(folder)), 0
            try:
                for command, shown in typed():
                    until = time.monotonic() + SECONDS
                    output = shell.type(command)
                    while (line := self.missing(output, shown, shell.pid)) and "curb ps" in command and time.monotonic() < until:
                        time.sleep(0.1)
                        output = shell.type(command)
                    self.assertIsNone(line, f"$ {command}\n{output}")
                    count += 1
            finally:
                shell.end()
            print(f"{count} lines of the tutorial were typed")
            self.assertGreater(count, 15)


if __name__ == "__main__":
    CURB = Path(sys.argv.pop(1)).resolve()
    unittest.main()
