"""Helpers of the tests of this folder: NAME_test.py BUILD [PORTION [RUNTIME]]

PORTION divides the work, for sanitizers, which are slow. RUNTIME is a sanitizer's library, preloaded first.
CURB_LOAD_SEED repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Sequence

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / folder) for folder in ("common", "matrix")]
import matrix  # noqa: E402
from simulated import PATIENCE_S, Machine, Process, within  # noqa: E402

BUILD = Path(sys.argv[1]).resolve()
PORTION = int(sys.argv[2]) if len(sys.argv) > 2 else 1
RUNTIME = sys.argv[3] if len(sys.argv) > 3 else ""
SEED = int(os.environ.get("CURB_LOAD_SEED", str(time.time_ns() % 1_000_000)))


class Judge:
    """Counts what a long test does, and keeps its errors."""

    def __init__(self) -> None:
        self.random = random.Random(SEED)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        print(f"CURB_LOAD_SEED={SEED}", flush=True)

    def expect(self, right: bool, otherwise: str) -> None:
        if not right:
            self.wrong.append(otherwise)
            print("WRONG:", otherwise, flush=True)

    def expect_empty(self, machine: Machine, after: str) -> None:
        """Waits until nothing is held on the machine."""
        self.expect(within(lambda: machine.used() == 0), f"{machine.used()} bytes are held after {after}")

    def make_quiet(self, members: Sequence[Traffic]) -> None:
        """Stops the threads of all. Expects no wrong operation."""
        for member in members:
            member.tell("quiet")
        for member in members:
            _, wrong = member.has_become_quiet()
            self.expect(wrong == 0, f"{wrong} calls of {member.pid} fail with more than a refusal: {member.log.read_text()[-500:]}")

    def expect_none(self, differences: Callable[[], list[str]]) -> None:
        """Waits until there are no differences. Expects none at the last look: a release may begin a moment later."""
        last: list[str] = []

        def agree() -> bool:
            last[:] = differences()
            return not last

        within(agree, pause=0.1)
        for difference in last:
            self.expect(False, difference)

    def report(self, row: str = "", count: int = 0) -> int:
        """Reports the count to the matrix if nothing was wrong and there is a row. Returns the exit status."""
        print(", ".join(f"{count} {what}" for what, count in sorted(self.counts.items())))
        if row and not self.wrong:
            matrix.report(row, count)
        return 1 if self.wrong else 0


def run(program: str, words: list[Any], gpu: dict[str, Any], **more: str) -> tuple[int, str, str]:
    """Runs a program with `gpu` as the policy of every device. Returns its status, stdout and stderr."""
    with Machine(BUILD, sanitizer=RUNTIME) as machine:
        environment = machine.under_curb({"gpu": {"*": gpu}, "log": {"level": "off"}}, **more)
        try:
            done = subprocess.run(
                [BUILD / "tests" / program, *map(str, words)],
                env=environment, capture_output=True, text=True, timeout=10 * PATIENCE_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            return -1, "", f"not ended after {late.timeout:g} s: {late.stderr!r}"
    return done.returncode, done.stdout, done.stderr[-3000:]


def is_simulated(descriptor: str) -> bool:
    """True for a file of the simulated driver, which backs memory that can be exported."""
    try:
        return os.readlink(descriptor).startswith("/memfd:curb-sim")
    except FileNotFoundError:
        return False


def of_process(pid: int) -> dict[str, int]:
    """Returns a process's threads, descriptors, and resident memory in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    field = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if len(line.split()) > 1}
    return {
        "threads": int(field["Threads"]),
        "descriptors": sum(not is_simulated(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")),
        "resident": int(field["VmRSS"]),
    }


def ask(machine: Machine, pid: int, request: dict[str, Any]) -> dict[str, Any]:
    """Sends a request to a process's control socket. Returns the answer; empty if it has no socket."""
    found = list((machine.runtime / "curb").glob(f"{pid}-*.sock"))
    if not found:
        return {}
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(found[0]))
        client.sendall(json.dumps({"curb": 1} | request).encode() + b"\n")
        with client.makefile("rb") as reply:
            answer: dict[str, Any] = json.loads(reply.readline())
            return answer


def status_of(machine: Machine, pid: int) -> dict[str, Any]:
    """Returns a process's status; empty if it has no socket, or has ended meanwhile."""
    try:
        answer: dict[str, Any] = ask(machine, pid, {"ask": "status"}).get("status", {})
    except (OSError, ValueError):
        return {}
    return answer


class Traffic(Process):
    """traffic_program. It takes commands, one a line."""

    def __init__(self, machine: Machine, words: list[str], environment: dict[str, str]) -> None:
        self.machine = machine
        self.log = machine.folder / f"log-{len(list(machine.folder.glob('log-*')))}"
        with self.log.open("w") as log:
            program = [machine.build / "tests/traffic_program", *words]
            super().__init__(program, environment, cwd=machine.folder, stderr=log)
        self.expect("working")

    def quiet(self) -> tuple[int, int]:
        """Stops its threads. Returns how many operations there were, and how many were wrong."""
        self.tell("quiet")
        return self.has_become_quiet()

    def has_become_quiet(self) -> tuple[int, int]:
        _, operations, wrong = self.line().split()
        return int(operations), int(wrong)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        return ask(self.machine, self.pid, request)

    def status(self) -> dict[str, Any]:
        return status_of(self.machine, self.pid)
