#!/usr/bin/env python3
"""300 processes that start at once: start_test.py BUILD

All wait at a barrier, then initialise the driver, make a context and allocate. Runs without curb, before and after, show
how fast this machine is now. Under curb all are up at most 2 s later than without, times how much slower than an idle
machine this one is. Each gets its memory, has its socket, and connects to no other process. None prints anything.
Only on a machine so busy that an answer of NVML takes longer than curb waits may a process warn that there is none.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from lifetime import finish, started

import matrix
from simulated import CONTEXT, MIB, Machine, within
from skipping import skipped

BUILD = Path(sys.argv[1]).resolve()
PROGRAM = BUILD / "tests/start_program"
COUNT = matrix.figure("starts")
IDLE_S = 0.25
"""The time of 300 starts without curb on two idle cores."""
BUSY = 3.0
"""On a machine so many times as slow as an idle one, 300 starts take 2 s: as long as curb waits for NVML (nvml_thread.cpp)."""
LATE = re.compile(rb"(curb\[\d+\]: NVML (does not answer|cannot be used).*\n)+")


def start_all(machine: Machine, environment: dict[str, str], count: int) -> tuple[list[subprocess.Popen[bytes]], float, list[float]]:
    """Returns the processes, the seconds until the last was up, and the milliseconds that each took."""
    processes = [started([PROGRAM], environment, cwd=machine.folder) for _ in range(count)]
    for process in processes:
        assert process.stdout and process.stdout.read(1) == b".", "it did not come to the barrier"
    begin = time.monotonic()
    for process in processes:
        assert process.stdin
        process.stdin.write(b"g")
        process.stdin.flush()
    took = []
    for process in processes:
        assert process.stdout
        result, milliseconds = process.stdout.readline().split()
        assert result == b"0", f"it started with error {result.decode()}"
        took.append(float(milliseconds))
    return processes, time.monotonic() - begin, took


def end_all(processes: list[subprocess.Popen[bytes]]) -> int:
    """Returns how many have warned that NVML does not answer in time."""
    late = 0
    for process in processes:
        status, out, err = finish(process, "a process that was to end", b"")
        warned = b"NVML does not answer" in err and LATE.fullmatch(err) is not None
        assert (status, out) == (0, b"") and (warned or not err), (status, out, err)
        late += warned
    return late


def measure(machine: Machine, environment: dict[str, str], count: int, what: str) -> tuple[float, list[subprocess.Popen[bytes]]]:
    processes, up, took = start_all(machine, environment, count)
    print(f"{what}: {count} up in {up:.2f} s; each took {statistics.median(took):.1f} ms, at most {max(took):.1f} ms", flush=True)
    return up, processes


def system_calls(machine: Machine, environment: dict[str, str]) -> None:
    """One more start must connect to none of the running processes."""
    strace = shutil.which("strace")
    if not strace:
        skipped("what one start does: strace is not installed")
        return
    log = machine.folder / "strace"
    command = [strace, "-f", "-qq", "-e", "trace=connect", "-o", log, PROGRAM]
    traced = started(command, environment, cwd=machine.folder)
    assert traced.stdin and traced.stdout
    traced.stdin.write(b"g")
    traced.stdin.flush()
    if not traced.stdout.read(1):
        skipped(f"what one start does: {finish(traced, 'strace')[2].decode().strip()}")
        return
    traced.stdout.readline()
    wait_for_sockets(machine, COUNT + 1)
    finish(traced, "a traced process", b"")
    connects = log.read_text().count("connect(")
    print(f"one more among {COUNT} connects to {connects} of them")
    assert connects == 0, f"one more process connected to {connects} of those that run"


def wait_for_sockets(machine: Machine, count: int) -> None:
    there = within(lambda: len(machine.sockets(".sock")) >= count)
    assert there, f"only {len(machine.sockets('.sock'))} of {count} sockets"


def main() -> None:
    with Machine(BUILD, memory="1024GiB") as machine:
        environment = machine.under_curb(CURB_CAP="8GiB")
        before, bare = measure(machine, machine.bare, COUNT, "without curb")
        assert end_all(bare) == 0
        up, processes = measure(machine, environment, COUNT, "under curb  ")
        try:
            wait_for_sockets(machine, COUNT)
            books = machine.books()[0]
            held = {one["pid"]: one["bytes"] for one in books["processes"]}
            assert held == {one.pid: CONTEXT + 4 * MIB for one in processes}, "the driver's books are not right"
            system_calls(machine, environment)
        finally:
            late = end_all(processes)
        after, bare = measure(machine, machine.bare, COUNT, "without curb")
        assert end_all(bare) == 0
        assert machine.used() == 0 and not machine.sockets()
        slower = max(1.0, max(before, after) / IDLE_S, os.getloadavg()[0] / 2)
        print(f"under curb {up - min(before, after):.2f} s later; this machine is {slower:.1f} times as busy as an idle one")
        if late:
            print(f"{late} of them went on without NVML")
        assert up <= max(before, after) + 2 * slower, "under curb they took too long to start"
        assert not late or slower >= BUSY, f"{late} of them warn that NVML does not answer"
    matrix.report("starts", COUNT)


main()
