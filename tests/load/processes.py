"""What the tests of this folder share: programs under curb on a simulated machine of their own, and its books."""

from __future__ import annotations

import json
import os
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
