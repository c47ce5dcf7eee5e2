"""A simulated machine for processes that start, fork and end: what the tests of this folder share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "matrix"))

MIB = 2**20
CONTEXT = 518 * MIB
"""What the simulated driver takes for a context."""
PATIENCE_S = 60.0
"""Until what should take milliseconds has failed: the machine may be busy."""


class Machine:
    """A folder with the state of a simulated machine, a runtime directory and what its processes write."""

    def __init__(self, library: Path, sim: Path, books: Path, curb: Path | None = None, memory: str = "80GiB") -> None:
        self.temporary = tempfile.TemporaryDirectory(prefix="curb-lifetime-")
        self.folder = Path(self.temporary.name)
        self.runtime = self.folder / "runtime"
        self.runtime.mkdir(mode=0o700)
        self.library, self.sim, self.books_program, self.curb_program = library, sim, books, curb
        kept = ("CURB_", "LD_PRELOAD", "LD_LIBRARY_PATH", "XDG_")
        self.bare = {name: value for name, value in os.environ.items() if not name.startswith(kept)} | {
            "HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "LD_LIBRARY_PATH": str(sim),
            "CURB_SIM_STATE": str(self.folder / "machine"),
            "CURB_SIM_MEMORY": memory,
        }

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.temporary.cleanup()

    def under_curb(self, policy: dict[str, Any] | None = None, **more: str) -> dict[str, str]:
        """The environment of a program under curb, with this policy in a file of its own."""
        environment = self.bare | {"LD_PRELOAD": str(self.library)} | more
        if policy is not None:
            file = Path(tempfile.mkstemp(suffix=".json", dir=self.folder)[1])
            file.write_text(json.dumps({"version": 1} | policy))
            environment["CURB_POLICY"] = str(file)
        return environment

    def books(self) -> dict[str, Any]:
        """Of device 0: what the simulated driver itself says."""
        done = subprocess.run(
            [self.books_program, self.bare["CURB_SIM_STATE"]], capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        return json.loads(done.stdout)["devices"][0]

    def curb(self, *words: str) -> subprocess.CompletedProcess[str]:
        assert self.curb_program
        return subprocess.run(
            [self.curb_program, *words], env=self.bare, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    def sockets(self) -> list[str]:
        try:
            return sorted(os.listdir(self.runtime / "curb"))
        except FileNotFoundError:
            return []


def stacks(pid: int) -> str:
    """Where each thread of a process is, for one that hangs."""
    out = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        for what in ("comm", "wchan", "syscall", "stack"):
            try:
                out.append(f"{task.name} {what}: {(task / what).read_text().strip()}")
            except OSError:
                continue
    try:
        command = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        out.append(done.stdout)
    except (OSError, subprocess.TimeoutExpired):
        pass
    return "\n".join(out)


def finish(process: subprocess.Popen[bytes], what: str, stdin: bytes | None = None) -> tuple[int, bytes, bytes]:
    """Status, stdout and stderr of a process that ends by itself; one that hangs is shown, and killed."""
    try:
        out, err = process.communicate(stdin, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        text = stacks(process.pid)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        raise AssertionError(f"{what} has not ended after {PATIENCE_S:g} s:\n{text}") from None
    return process.returncode, out, err
