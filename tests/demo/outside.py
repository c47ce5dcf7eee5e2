"""Reads from outside a process what it holds of GPU 0: by the simulated machine's books, or by NVML."""

import json
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "gpu" / "measuring"))
from nvml import Device  # noqa: E402


class SimulatedMachine:
    name = "the simulated driver's own books (curb-sim-books)"

    def __init__(self, books, state):
        self.command = [str(books), str(state)]

    def held(self, pid):
        answer = subprocess.run(self.command, capture_output=True, text=True)
        if answer.returncode != 0:
            return 0  # the first program that uses the machine makes it
        for process in json.loads(answer.stdout)["devices"][0]["processes"]:
            if process["pid"] == pid:
                return process["bytes"]
        return 0


class Gpu:
    name = "NVML"

    def __init__(self, uuid):
        self.device = Device(uuid)
        self.used_before = self.device.used()

    def held(self, pid):
        held = self.device.held()
        if pid in held or not held:
            return held.get(pid, 0)
        # In a container NVML has other PIDs than ours. Then use the growth of what is in use on the whole device.
        return max(0, self.device.used() - self.used_before)
