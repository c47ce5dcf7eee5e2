"""Reports what cannot be tried here. scripts/test prints these lines again at its end, with the test's name."""

from __future__ import annotations

import shutil
import subprocess
import sys
import unittest
from pathlib import Path
from typing import NoReturn


def skipped(why: str) -> None:
    """Reports that a part of a test is skipped."""
    print(f"skipped: {why}", flush=True)


def skip(why: str) -> NoReturn:
    """Reports that the whole test is skipped, and exits."""
    skipped(why)
    sys.exit(77)


def why_closed(path: Path) -> str:
    """Returns why other users cannot reach the path; empty if they can."""
    closed = [folder for folder in (path, *path.parents) if not folder.stat().st_mode & 0o001]
    return f"others may not enter {closed[-1]}" if closed else ""


def has_man() -> bool:
    """True if man is installed. Container images have a stub that only prints how to get it."""
    return bool(shutil.which("man")) and subprocess.run(["man", "--version"], capture_output=True, text=True).stdout.startswith("man ")


class _Result(unittest.TextTestResult):
    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        skipped(f"{test.id().rpartition('.')[2]}: {reason}")


def run_cases() -> None:
    """Runs unittest.main() for the calling file, and keeps that file's own arguments from unittest."""
    unittest.main(argv=sys.argv[:1], testRunner=unittest.TextTestRunner(resultclass=_Result))
