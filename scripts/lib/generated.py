"""Functions of the scripts that write documents: NAME [--check] [CURB]"""

import difflib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = Path(sys.argv[0]).name


def fail(message):
    sys.exit(f"{NAME}: {message}")


def is_check_and_curb(arguments):
    """Returns whether --check is given, and the path of the command curb. Exits on other arguments, or without curb."""
    others = [one for one in arguments if one != "--check"]
    if len(others) > 1 or any(one.startswith("-") for one in others):
        sys.exit(f"usage: scripts/{NAME} [--check] [CURB]")
    curb = Path(others[0] if others else ROOT / "build" / "bin" / "curb").resolve()
    if not curb.exists():
        fail(f"there is no {curb}; run scripts/build, or name another curb")
    return "--check" in arguments, curb


def write(due, check):
    """Writes each text to its file. With `check` prints the differences instead, and exits with an error if there are any."""
    stale = []
    for file, text in due.items():
        there = file.read_text() if file.exists() else ""
        if there == text:
            continue
        stale.append(str(file.relative_to(ROOT)))
        if check:
            lines = (one.splitlines(keepends=True) for one in (there, text))
            sys.stdout.writelines(difflib.unified_diff(*lines, "the file", "the text to write"))
        else:
            file.write_text(text)
    if check and stale:
        fail(f"stale: {', '.join(stale)}; run scripts/{NAME}")
