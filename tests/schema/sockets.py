"""When a capped process can be asked: its socket comes a moment after its first use of CUDA."""

import time
from pathlib import Path


def wait_for_socket(runtime):
    deadline = time.monotonic() + 20
    while not list(Path(runtime).glob("curb/*.sock")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no process under curb has come to {runtime}/curb")
        time.sleep(0.01)
