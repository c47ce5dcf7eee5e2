#!/usr/bin/env python3
"""What a run of tests has covered of the pure layers: covered.py GCOV BUILD

GCOV is the gcov of the compiler that built BUILD. Prints the lines that nothing has run, a table with a row for each
layer, and reports the lowest percentage, rounded down. Ends with 1 where that is below the figure.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import matrix

ROOT = Path(__file__).resolve().parent.parent.parent

LAYERS = ("policy", "config", "control")
AT_ONCE = 40
"""Objects for one call of gcov: more than one, since each start of it takes a while."""

ITSELF = re.compile(r"= default|^\s*(struct|class) \w+ ")
"""The first line of a function that the compiler generates."""

Counts = dict[str, dict[int, int]]
"""How often each line of each source has run."""


def counts(gcov: str, build: Path) -> Counts:
    out: Counts = defaultdict(lambda: defaultdict(int))
    objects = sorted(str(note) for note in build.rglob("*.gcno"))
    for first in range(0, len(objects), AT_ONCE):
        command = [gcov, "--json-format", "--stdout", *objects[first : first + AT_ONCE]]
        said = subprocess.run(command, cwd=build, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for text in said.stdout.splitlines():
            for file in json.loads(text)["files"]:
                # The path given to the compiler: relative to the build directory, or absolute.
                path = os.path.relpath(os.path.normpath(build / file["file"]), ROOT)
                if not path.startswith(tuple(f"{layer}/" for layer in LAYERS)):
                    continue
                source = (ROOT / path).read_text(encoding="utf-8").splitlines()
                # Leaves out comparisons and constructors that the compiler generates: gcov counts them at the members'
                # declarations.
                ours = [
                    range(function["start_line"], function["end_line"] + 1)
                    for function in file["functions"]
                    if not ITSELF.search(source[function["start_line"] - 1])
                ]
                for line in file["lines"]:
                    number = line["line_number"]
                    # gcov also counts the last brace of a function that always returns earlier, or throws.
                    if source[number - 1].strip() != "}" and any(number in lines for lines in ours):
                        out[path][number] += line["count"]
    return out


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    found = counts(sys.argv[1], Path(sys.argv[2]).resolve())
    for path, lines in sorted(found.items()):
        source = (ROOT / path).read_text(encoding="utf-8").splitlines()
        for number in sorted(number for number, count in lines.items() if count == 0):
            print(f"{path}:{number}: {source[number - 1].strip()}")
    print(f"\n{'layer':<8} {'lines':>6} {'run':>6} {'percent':>8}")
    least = 100
    for layer in LAYERS:
        lines = [count for path, each in found.items() if path.startswith(f"{layer}/") for count in each.values()]
        run = sum(count > 0 for count in lines)
        percent = 100 * run / len(lines) if lines else 0.0
        least = min(least, int(percent))
        print(f"{layer:<8} {len(lines):>6} {run:>6} {percent:>8.1f}")
    matrix.report("covered_percent", least)
    figure = matrix.figure("covered_percent", nightly=True)
    if least >= figure:
        return 0
    print(f"below {figure} percent: the lines above are run by no test", file=sys.stderr)
    return 1


sys.exit(main())
