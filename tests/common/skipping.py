"""What cannot be tried here is said in lines that scripts/test prints once more at its end, with the test's name."""

from __future__ import annotations

import sys
import unittest
from typing import NoReturn


def skipped(why: str) -> None:
    """Of a part of a test."""
    print(f"skipped: {why}", flush=True)


def skip(why: str) -> NoReturn:
    """Of all of it."""
    skipped(why)
    sys.exit(77)


class _Result(unittest.TextTestResult):
    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # pylint: disable=invalid-name
        super().addSkip(test, reason)
        skipped(f"{test.id().rpartition('.')[2]}: {reason}")


def run_cases() -> None:
    """unittest.main() for the file that calls it, whose own words are behind sys.argv[1] and none of unittest's."""
    unittest.main(argv=sys.argv[:1], testRunner=unittest.TextTestRunner(resultclass=_Result))
