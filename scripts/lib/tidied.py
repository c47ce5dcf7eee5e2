"""Prints the sources of a build that clang-tidy has to check: tidied.py BUILD COMMIT

Those of policy/, config/, control/ and shim/ that differ from COMMIT, or include a file that does. All of them if COMMIT
is empty or unknown, or if the list of checks has changed.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LAYERS = ("policy", "config", "control", "shim")


def lines(*command: str) -> list[str] | None:
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout.splitlines() if run.returncode == 0 else None


def included(build: Path) -> dict[str, set[str]]:
    """Returns the files that each object is made of, by ninja's log of dependencies."""
    out: dict[str, set[str]] = {}
    files: set[str] = set()
    for line in lines("ninja", "-C", str(build), "-t", "deps") or []:
        if match := re.fullmatch(r"(\S+): #deps .*", line):
            files = out.setdefault(match[1], set())
        elif line.startswith("    "):
            files.add(str((build / line.strip()).resolve()))
    return out


def main() -> None:
    build, since = Path(sys.argv[1]).resolve(), sys.argv[2]
    differing = lines("git", "diff", "--name-only", since) if since else None
    new = lines("git", "ls-files", "--others", "--exclude-standard") or []
    changed = None if differing is None else {str(ROOT / name) for name in differing + new}
    if changed and str(ROOT / ".clang-tidy") in changed:
        changed = None
    made_of = included(build)
    for one in json.loads((build / "compile_commands.json").read_text()):
        source = Path(one["file"])
        home = build if source.is_relative_to(build) else ROOT
        if source.name.startswith("cmake_pch") or source.relative_to(home).parts[0] not in LAYERS:
            continue
        made = re.search(r" -o (\S+)", one["command"])
        files = made_of.get(made[1]) if made else None
        if changed is None or files is None or files & changed:
            print(source)


main()
