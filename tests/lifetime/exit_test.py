#!/usr/bin/env python3
"""How programs end: exit_test.py BUILD

Each way of exit_program.cpp and exit_python.py must end under curb as without: with the same status and output, nothing on
stderr, less than a second later, and nothing of the process left in the driver's books.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from lifetime import outcome

import matrix
from simulated import Machine

BUILD = Path(sys.argv[1]).resolve()
PROGRAM = BUILD / "tests/exit_program"
PYTHON = [sys.executable, "-I", str(Path(__file__).resolve().parent / "exit_python.py")]
RUNS = matrix.figure("exits") // 12
"""Runs of each way. There are more than twelve ways."""
POLICY = {"gpu": {"*": {"cap": "2GiB", "cache": {"max": "64MiB"}, "growth": {"wait": "60s"}}}}
REMOVES_SOCKET = {"return with all alive", "exit", "handlers before and after", "pthread_exit from main", "exit during a release", "finalisation"}
"""Ways that end by exit, with no other thread at work."""


def run(machine: Machine, environment: dict[str, str], command: list[str], what: str) -> tuple[tuple[int, bytes, bytes], float]:
    begin = time.monotonic()
    done = outcome(command, environment, what, cwd=machine.folder)
    return done, time.monotonic() - begin


def one_way(machine: Machine, command: list[str], way: str) -> float:
    """Runs one way RUNS times. Returns how many seconds longer it takes than without curb."""
    own_policy = machine.folder / "edited.json"
    bare_environment = machine.bare | {"EXIT_LIBRARY": str(BUILD / "tests/libexit_library.so"), "EXIT_POLICY": str(own_policy)}
    plain = machine.under_curb(POLICY, **bare_environment)
    traced = machine.under_curb(POLICY | {"trace": {"file": str(machine.folder / "trace.json")}}, **bare_environment)
    own_policy.write_text('{"version": 1, "gpu": {"*": {"cap": "2GiB"}}}')
    edited = plain | {"CURB_POLICY": str(own_policy), "CURB_LOG": "error"}  # edits are logged
    bare = [run(machine, bare_environment, command, f"{way}, without curb") for _ in range(3)]
    expected = bare[0][0]
    assert all(one == expected for one, _ in bare), f"{way}: not even without curb is it always the same: {bare}"
    times = []
    for number in range(RUNS):
        environment = edited if "edit" in way else (plain, traced)[number % 2]
        if "late" in way:
            environment = environment | {"LD_PRELOAD": f"{machine.preload}:{BUILD}/tests/liblate_threads.so"}
        done, took = run(machine, environment, command, way)
        assert done == expected, f"{way}: {done} under curb, {expected} without"
        times.append(took)
        if way in REMOVES_SOCKET:
            assert not machine.sockets(), f"{way}: {machine.sockets()}"
        for name in machine.sockets():  # other ways leave their socket to the next process, which kill_test.py tests
            (machine.runtime / "curb" / name).unlink()
    books = machine.books()[0]
    assert books["used"] == 0 and not books["processes"], f"{way}: the driver's books hold {books}"
    return statistics.median(times) - max(took for _, took in bare)


def main() -> None:
    count, longest = 0, 0.0
    names = {"program": [str(PROGRAM)], "Python": PYTHON}
    with Machine(BUILD) as machine:
        for kind, command in names.items():
            ways = subprocess.run(command, env=machine.bare, capture_output=True, text=True, check=True).stdout
            for way in ways.splitlines():
                more = one_way(machine, [*command, way], way)
                print(f"{kind}: {way}: {RUNS} times, {more * 1000:+.0f} ms", flush=True)
                assert more < 1 + os.getloadavg()[0] / 4, f"{way}: it ends {more:.1f} s later under curb"
                longest = max(longest, more)
                count += RUNS
    print(f"at most {longest * 1000:.0f} ms longer")
    matrix.report("exits", count)


signal.signal(signal.SIGUSR1, signal.SIG_DFL)
main()
