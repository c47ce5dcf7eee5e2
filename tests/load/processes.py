"""What the tests of this folder share: programs under curb on a simulated machine of their own, and its books."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

MIB = 2**20


class Machine:
    """A simulated machine with its runtime directory, which end with the `with` block."""

    def __init__(self, library: Path, sim: Path, runtime: str = "", gpus: int = 1) -> None:
        # pylint: disable=consider-using-with
        self.temporary = tempfile.TemporaryDirectory(prefix="curb-load-", ignore_cleanup_errors=True)
        self.folder = Path(self.temporary.name)
        self.state = self.folder / "machine"
        (self.folder / "runtime").mkdir(mode=0o700)
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("CURB_", "LD_PRELOAD", "XDG_"))
        } | {
            "XDG_RUNTIME_DIR": str(self.folder / "runtime"),
            "HOME": str(self.folder),
            "LD_LIBRARY_PATH": str(sim),
            "CURB_SIM_STATE": str(self.state),
            "CURB_SIM_GPUS": str(gpus),
            "CURB_SIM_MEMORY": "80GiB",
        }
        # A sanitizer's runtime has to come first.
        self.preload = {"LD_PRELOAD": f"{runtime}:{library}" if runtime else str(library)}

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.temporary.cleanup()

    def policy(self, name: str, policy: dict[str, Any]) -> Path:
        file = self.folder / name
        file.write_text(json.dumps({"version": 1} | policy))
        return file

    def books(self, command: Path, forget_highs: bool = False) -> dict[tuple[int, int], dict[str, int]]:
        """(pid, device) -> what the simulated machine says of it."""
        words = [str(command), *(["--forget-highs"] if forget_highs else []), str(self.state)]
        text = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
        return {
            (process["pid"], number): process
            for number, device in enumerate(json.loads(text)["devices"])
            for process in device["processes"]
        }


def of_process(pid: int) -> dict[str, int]:
    """What it has of the host: threads, descriptors, resident memory in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    field = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if len(line.split()) > 1}
    return {
        "threads": int(field["Threads"]),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "resident": int(field["VmRSS"]),
    }


class Traffic:
    """traffic_program under curb, told what to do line by line."""

    def __init__(self, machine: Machine, program: Path, words: list[str], environment: dict[str, str]) -> None:
        # pylint: disable=consider-using-with
        self.machine = machine
        self.log = machine.folder / f"log-{len(list(machine.folder.glob('log-*')))}"
        self.process = subprocess.Popen(
            [str(program), *words],
            env=machine.environment | machine.preload | environment,
            cwd=machine.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
            bufsize=1,
        )
        self.pid = self.process.pid
        if self.answer() != ["working"]:
            raise RuntimeError(f"{program} has not started: {self.log.read_text()}")

    def tell(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")

    def answer(self) -> list[str]:
        assert self.process.stdout
        return self.process.stdout.readline().split()

    def quiet(self) -> tuple[int, int]:
        """Nobody works any more; how many operations there were, and how many that were wrong."""
        self.tell("quiet")
        return self.has_become_quiet()

    def has_become_quiet(self) -> tuple[int, int]:
        _, operations, wrong = self.answer()
        return int(operations), int(wrong)

    def ends(self) -> int:
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe and not pipe.closed:
                pipe.close()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer on its control socket; empty: there is none."""
        found = list((self.machine.folder / "runtime" / "curb").glob(f"{self.pid}-*.sock"))
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
