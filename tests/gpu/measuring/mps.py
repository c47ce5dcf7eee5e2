"""NVIDIA's MPS: the control daemon, and the variables of its clients."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path


class MpsDaemon:
    """A control daemon of our own. It leaves the GPU's compute mode as it is, so clients of MPS and other processes use the GPU in
    turns."""

    def __init__(self, folder: Path, device_index: int, environment: Mapping[str, str]) -> None:
        self._env = {
            "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
            "CUDA_VISIBLE_DEVICES": str(device_index),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }
        self._around = environment
        self._control = shutil.which("nvidia-cuda-mps-control")
        self._runs = False
        for name in ("pipe", "log"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    @property
    def client(self) -> dict[str, str]:
        """The variables that make a process a client. It counts the daemon's devices, from 0."""
        return self._env | {"CUDA_VISIBLE_DEVICES": "0"}

    def start(self) -> str:
        """Starts it. Returns why MPS cannot run here; empty: it runs."""
        wrong = self._call("-d")
        self._runs = not wrong
        return wrong

    def stop(self) -> None:
        if self._runs:
            self._call(commands="quit -t 5\n")

    def _call(self, *options: str, commands: str = "") -> str:
        """Calls nvidia-cuda-mps-control. Returns its error; empty: none."""
        if not self._control:
            return "there is no nvidia-cuda-mps-control"
        try:
            done = subprocess.run(
                [self._control, *options], env={**self._around, **self._env}, input=commands,
                capture_output=True, text=True, timeout=30, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "nvidia-cuda-mps-control did not end within 30 s"
        said = (done.stderr or done.stdout).strip()[:200]
        return f"nvidia-cuda-mps-control: {said}" if done.returncode != 0 else ""
