"""What the tests of this folder share: traffic_program, and what a process has of the host."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / folder) for folder in ("common", "matrix")]
from simulated import Machine, Process  # noqa: E402


def is_simulated(descriptor: str) -> bool:
    """What backs memory that can be exported is a file of the simulated driver."""
    try:
        return os.readlink(descriptor).startswith("/memfd:curb-sim")
    except FileNotFoundError:
        return False


def of_process(pid: int) -> dict[str, int]:
    """What it has of the host: threads, descriptors, resident memory in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    field = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if len(line.split()) > 1}
    return {
        "threads": int(field["Threads"]),
        "descriptors": sum(not is_simulated(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")),
        "resident": int(field["VmRSS"]),
    }


class Traffic(Process):
    """traffic_program under curb, told what to do line by line."""

    def __init__(self, machine: Machine, words: list[str], environment: dict[str, str]) -> None:
        self.machine = machine
        self.log = machine.folder / f"log-{len(list(machine.folder.glob('log-*')))}"
        with self.log.open("w") as log:
            program = [machine.build / "tests/traffic_program", *words]
            super().__init__(program, machine.under_curb(**environment), cwd=machine.folder, stderr=log)
        self.expect("working")

    def quiet(self) -> tuple[int, int]:
        """Nobody works any more; how many operations there were, and how many that were wrong."""
        self.tell("quiet")
        return self.has_become_quiet()

    def has_become_quiet(self) -> tuple[int, int]:
        _, operations, wrong = self.line().split()
        return int(operations), int(wrong)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer on its control socket; empty: there is none."""
        found = list((self.machine.runtime / "curb").glob(f"{self.pid}-*.sock"))
        if not found:
            return {}
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(str(found[0]))
            client.sendall(json.dumps({"curb": 1} | request).encode() + b"\n")
            with client.makefile("rb") as reply:
                answer: dict[str, Any] = json.loads(reply.readline())
                return answer

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.ask({"ask": "status"}).get("status", {})
        return answer
