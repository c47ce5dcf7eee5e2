"""A simulated machine and its processes, for tests that watch them from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any, Callable

MIB = 2**20
CONTEXT = 518 * MIB
"""Bytes of a context on the simulated driver."""
PATIENCE_S = 60.0
"""The limit for what should take milliseconds: the machine may be busy."""


def within(condition: Callable[[], Any], patience: float = PATIENCE_S, pause: float = 0.01) -> Any:
    """Waits until the condition is true, at most `patience` seconds. Returns its last value.

    Pauses for four times as long as the condition took, but for no longer than 50 ms or `pause`: many start a process, and
    the tests beside this one need the processor.
    """
    until = time.monotonic() + patience
    begin = time.monotonic()
    while not (value := condition()) and time.monotonic() < until:
        time.sleep(max(pause, min(4 * (time.monotonic() - begin), 0.05)))
        begin = time.monotonic()
    return value


class Process:
    """A program that takes commands, one a line, as that of tests/process/control/command_scenarios.cpp does."""

    def __init__(self, command: list[Any], environment: dict[str, str], **options: Any) -> None:
        self.command = command
        self.child = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, **options
        )
        self.pid = self.child.pid

    def tell(self, line: str) -> None:
        assert self.child.stdin
        self.child.stdin.write(line + "\n")

    def line(self) -> str:
        """Returns its next line of output; empty at the end."""
        assert self.child.stdout
        return self.child.stdout.readline().rstrip("\n")

    def expect(self, answer: str) -> None:
        line = self.line()
        assert line == answer, f"{self.command} said {line!r}, not {answer!r}; it ended with {self.child.poll()}"

    def answer(self, line: str) -> str:
        self.tell(line)
        return self.line()

    def asked(self, line: str, answer: str = "ok") -> None:
        self.tell(line)
        self.expect(answer)

    def ends(self) -> int:
        """Closes its input, and waits for its end. Returns its exit status."""
        assert self.child.stdin
        self.child.stdin.close()
        return self.child.wait(PATIENCE_S)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe and not pipe.closed:
                pipe.close()


class Machine:
    """A folder with the machine's state, a runtime directory and its processes' files. A `with` deletes it at its end."""

    def __init__(self, build: Path, gpus: int = 1, memory: str = "80GiB", sanitizer: str = "") -> None:
        self.build = build
        self.temporary = tempfile.TemporaryDirectory(prefix="curb-test-", ignore_cleanup_errors=True)
        self.folder = Path(self.temporary.name)
        self.runtime = self.folder / "runtime"
        self.runtime.mkdir(mode=0o700)
        self.processes: list[Process] = []
        # A sanitizer's runtime has to come first.
        self.preload = ":".join(filter(None, (sanitizer, str(build / "lib/libcurb.so"))))
        self.program = [build / "tests/scenarios", "runs_commands"]
        """The program of command_scenarios.cpp."""
        self.bare = {name: value for name, value in os.environ.items() if not name.startswith(("CURB_", "LD_", "XDG_"))} | {
            "HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "LD_LIBRARY_PATH": str(build / "sim"),
            "CURB_SIM_STATE": str(self.folder / "machine"),
            "CURB_SIM_GPUS": str(gpus),
            "CURB_SIM_MEMORY": memory,
        }

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        self.temporary.cleanup()

    def policy(self, policy: dict[str, Any], name: str = "job.json") -> Path:
        """Writes a policy by rename, as editors do."""
        fresh = self.folder / f"{name}.new"
        fresh.write_text(json.dumps({"version": 1} | policy))
        return fresh.rename(self.folder / name)

    def under_curb(self, policy: dict[str, Any] | None = None, **more: str) -> dict[str, str]:
        """Returns the environment of a program under curb, with this policy."""
        environment = self.bare | {"LD_PRELOAD": self.preload} | more
        if policy is not None:
            file = Path(tempfile.mkstemp(suffix=".json", dir=self.folder)[1])
            environment["CURB_POLICY"] = str(self.policy(policy, file.name))
        return environment

    def begin(self, command: list[Any], environment: dict[str, str], **options: Any) -> Process:
        """Starts a program and waits until it is ready."""
        process = Process(command, environment, **options)
        self.processes.append(process)
        process.expect("ready")
        return process

    def start(self, command: list[Any], environment: dict[str, str], **options: Any) -> Process:
        """Starts a program and waits until it is ready; under curb, also for its control socket."""
        process = self.begin(command, environment, **options)
        if "LD_PRELOAD" in environment:
            self.wait_for_socket(process.pid)
        return process

    def run_program(self, environment: dict[str, str] | None = None) -> Process:
        """Starts `program`, by default under a cap of 8 GiB."""
        return self.start(self.program, environment or self.under_curb(CURB_CAP="8GiB"))

    def wait_for_socket(self, pid: int) -> None:
        """Waits for a process's control socket, which comes a moment after its first use of CUDA."""
        assert within(lambda: any(name.startswith(f"{pid}-") for name in self.sockets(".sock"))), f"process {pid} has no socket"

    def sockets(self, ending: str = "") -> list[str]:
        """Returns the files beside the control sockets, those too; with an `ending` only files whose names have it."""
        try:
            return sorted(name for name in os.listdir(self.runtime / "curb") if name.endswith(ending))
        except FileNotFoundError:
            return []

    def curb(
        self, *words: object, timeout: float = PATIENCE_S, cwd: Path | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.build / "bin/curb", *map(str, words)],
            cwd=cwd, env=self.bare | more, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    def books(self, *options: str) -> list[dict[str, Any]]:
        """Returns the simulated driver's books by device: total, used, and what each process holds."""
        done = subprocess.run(
            [self.build / "bin/curb-sim-books", *options, self.bare["CURB_SIM_STATE"]],
            capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        )  # fmt: skip
        devices: list[dict[str, Any]] = json.loads(done.stdout)["devices"]
        return devices

    def used(self) -> int:
        """Returns the bytes in use on the first device."""
        return int(self.books()[0]["used"])

    def held(self, *options: str) -> dict[tuple[int, int], dict[str, int]]:
        """Returns the books of each process by (pid, device)."""
        return {
            (process["pid"], number): process
            for number, device in enumerate(self.books(*options))
            for process in device["processes"]
        }


class OfMachine(unittest.TestCase):
    """Tests of which each has a machine of its own. The build is the test program's first argument."""

    gpus, memory = 1, "80GiB"

    def setUp(self) -> None:
        self.machine = Machine(Path(sys.argv[1]).resolve(), self.gpus, self.memory)
        self.addCleanup(self.machine.__exit__)
