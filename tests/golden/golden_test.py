#!/usr/bin/env python3
"""The cost of curb in instructions, compared with golden.json: golden_test.py BUILD LIBCURB [PATHS DRIVER] [--write]

BUILD names compiler and kind of build, PATHS is the program golden_paths, DRIVER the folder of the driver for it. Valgrind's
callgrind counts instructions with curb and without: for each path per call, and for a start of /bin/true. A figure is the
difference. Two more figures of a start are read from libcurb.so itself. The figures are of one build on one system; on any
other the test is skipped.

--write: writes golden.json instead (scripts/golden --write does it with a fresh build).
"""

import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent / "golden.json"
CALLS = 500
"""Calls of each path between two dumps: kCalls in paths.cpp."""
TOLERANCE = 0.01
"""Two runs differ by less than 0.2 % (one more or less read of the clock)."""
LEAST = 2
"""Differences of so few instructions do not count: they may come from the compiler's alignment."""
CAP = '{ "version": 1, "log": { "level": "off" }, "gpu": { "*": { "cap": "64GiB"%s } }%s }'


def callgrind(command: list[str], folder: Path, more: dict[str, str], *options: str) -> dict[str, int]:
    """Returns instructions by name of the dump, the least of each name; of a run without dumps, under the empty name."""
    out = folder / "callgrind"
    # Fair, because on a busy machine curb's worker starves else, and each call asks it again.
    environment = {"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(folder), "HOME": str(folder)} | more
    done = subprocess.run(
        ["valgrind", "-q", "--tool=callgrind", "--fair-sched=try", f"--callgrind-out-file={out}", *options, *command],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    figures = {}
    for file in folder.glob("callgrind*"):
        text = file.read_text()
        name = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE)
        total = re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)
        path = name[1] if name else ""
        figures[path] = min(int(total[1]), figures.get(path, sys.maxsize))
    return figures


def walked(which: str, paths: Path, driver: Path, library: Path | None, policy: str = "") -> dict[str, float]:
    """Returns the instructions of each path, per call."""
    with tempfile.TemporaryDirectory(prefix="curb-golden-") as name:
        folder = Path(name)
        (folder / "policy.json").write_text(policy.replace("TRACE", str(folder / "trace")))
        more = {"LD_LIBRARY_PATH": str(driver)}
        if library:
            more |= {"LD_PRELOAD": str(library), "CURB_POLICY": str(folder / "policy.json")}
        figures = callgrind([str(paths), which], folder, more, "--collect-atstart=no")
    return {path: count / CALLS for path, count in figures.items() if path}


def start(library: Path | None, **more: str) -> int:
    """Returns the instructions of a start of /bin/true. The library's path, which the loader reads byte by byte, is fixed."""
    with tempfile.TemporaryDirectory(prefix="curb-golden-") as name:
        if library:
            shutil.copy(library, Path(name) / "libcurb.so")
        return callgrind(["/bin/true"], Path(name), {"LD_PRELOAD": "./libcurb.so"} | more if library else more)[""]


def counts_of(library: Path) -> dict[str, int]:
    """Returns what the loader has to do for the library at every start."""
    relocations = subprocess.run(["readelf", "-rW", library], check=True, capture_output=True, text=True).stdout
    return {
        "start: addresses that the loader fills in": len(re.findall(r"R_\w+_RELATIVE", relocations)),
        "start: names that the loader looks up": len(re.findall(r"R_\w+_(?:JUMP_SLOT|GLOB_DAT)", relocations)),
    }


def measured(library: Path, paths: Path, driver: Path) -> dict[str, float]:
    with ThreadPoolExecutor(2) as pool:
        bare = pool.submit(walked, "all", paths, driver, None)
        capped = pool.submit(walked, "all", paths, driver, library, CAP % ("", ""))
        cached = pool.submit(walked, "pair", paths, driver, library, CAP % (', "cache": { "max": "16GiB" }', ""))
        traced = pool.submit(walked, "pair", paths, driver, library, CAP % ("", ', "trace": { "file": "TRACE" }'))
        starts = [pool.submit(start, which) for which in (None, library)]
        capped_start = pool.submit(start, library, CURB_CAP="64GiB")
        (pair,) = cached.result()
        plain = capped.result()
        figures = {path: count - bare.result()[path] for path, count in plain.items()}
        figures[f"{pair}, from the cache"] = cached.result()[pair] - bare.result()[pair]
        figures["an event of the trace"] = (traced.result()[pair] - plain[pair]) / 2
        figures["start of /bin/true"] = starts[1].result() - starts[0].result()
        figures["start of /bin/true, more with CURB_CAP"] = capped_start.result() - starts[1].result()
    return {path: round(figure, 1) for path, figure in figures.items()} | counts_of(library)


def judged(golden: dict[str, float], now: dict[str, float]) -> tuple[list[str], list[str]]:
    """Returns the figures that are worse than before, and those that are better."""
    worse, better = [], []
    for path in golden.keys() | now.keys():
        if path not in golden or path not in now:
            worse.append(f"{path}: {'no golden figure' if path in now else 'not measured any more'}")
            continue
        before, after = golden[path], now[path]
        allowed = max(before * TOLERANCE, LEAST)
        line = f"{path}: {after:,} instead of {before:,} ({(after / before - 1) * 100 if before else 0:+.1f} %)"
        if after > before + allowed:
            worse.append(line)
        elif after < before - allowed:
            better.append(line)
    return sorted(worse), sorted(better)


def main() -> int:
    arguments = [word for word in sys.argv[1:] if word != "--write"]
    build = f"{arguments[0]}, {' '.join(platform.libc_ver())}, {platform.machine()}"
    write = "--write" in sys.argv
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {"build": build, "instructions": {}}
    lacking = (
        "valgrind is not installed, or was not when this was configured (scripts/setup test)"
        if not shutil.which("valgrind") or len(arguments) < 4
        else f"the figures are of {golden['build']}, and this is {build}" if build != golden["build"] and not write
        else None
    )
    if lacking:
        print(f"skipped: {lacking}")
        return 1 if write else 77
    now = measured(*(Path(word).resolve() for word in arguments[1:4]))
    worse, better = judged(golden["instructions"], now)
    for path, figure in sorted(now.items()):
        print(f"{figure:>12,}  {path}")
    if write:
        GOLDEN.write_text(json.dumps({"build": build, "instructions": dict(sorted(now.items()))}, indent=2) + "\n")
    for heading, lines in (("\nmore than the golden figure:", worse), ("\nless than the golden figure:", better)):
        if lines:
            print(heading, *lines, sep="\n  ")
    if write:
        return 0
    if better and not worse:
        print("\nKeep what was won: scripts/golden --write")
    if worse:
        print("\nSee where it goes: valgrind --tool=callgrind --dump-instr=yes, callgrind_annotate. If it has to be so, say why"
              " in the commit and write the new figures: scripts/golden --write")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
