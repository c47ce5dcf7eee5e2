"""The subjects under which a lane can run: none (bare), curb with several policies, another preload, or NVIDIA's MPS with a
limit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_tests import Preload

CAP = "64GiB"
_CACHE = {"max": "32GiB", "idle": "1h"}
# Beginnings of the variables that must not come from the shell.
_DECIDED_HERE = ("LD_PRELOAD", "CURB_CAP", "CURB_POLICY", "CUDA_MPS_", "PYTORCH_", "XLA_", "TF_")


@dataclass(frozen=True)
class Subject:
    name: str
    says: str
    library: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    policy: Mapping[str, Any] | None = None
    drivers: tuple[str, ...] = ("noop", "sim", "gpu")
    cannot: str = ""

    def preload(self, folder: Path, first: Path | None = None) -> dict[str, str]:
        """Returns the variables that run a program under it, with the preload `first` before it. Writes its policy into the
        folder."""
        env = dict(self.env)
        if libraries := [str(library) for library in (first, self.library) if library]:
            env["LD_PRELOAD"] = ":".join(libraries)
        if self.policy is not None:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "job.json"
            trace: dict[str, Any] = {"trace": {"file": str(folder / "trace.json")}} if self.name in (TRACE, STACKS) else {}
            if self.name == STACKS:
                trace["trace"]["stacks"] = "64MiB"
            path.write_text(json.dumps({"version": 1, **self.policy, **trace}, indent=2))
            env["CURB_POLICY"] = str(path)
        return env


BARE, CURB, CACHED, TRACE, STACKS, MPS = "bare", "curb", "curb+cache", "curb+trace", "curb+stacks", "mps"
DIRECT = "direct"
"""Not a subject, but a base of comparison: the driver's own functions, called in the subject's process."""


def own_subjects(library: Path) -> list[Subject]:
    capped = {"gpu": {"*": {"cap": CAP}}}
    cached = {"gpu": {"*": {"cap": CAP, "cache": _CACHE}}}
    return [
        Subject(BARE, "only the driver"),
        Subject(CURB, f"libcurb.so, cap {CAP}, no cache", library, policy=capped),
        Subject(CACHED, f"libcurb.so, cap {CAP}, a cache of {_CACHE['max']}", library, policy=cached),
        Subject(TRACE, f"libcurb.so, cap {CAP}, and a trace", library, policy=capped),
        Subject(STACKS, f"libcurb.so, cap {CAP}, and a trace with stacks from 64 MiB on", library, policy=capped),
    ]


def peer(text: str) -> Subject:
    """Makes a subject of NAME=/path/lib.so[,VAR=value...]. Raises ArgumentTypeError."""
    preload = Preload.parse(text)
    said = "".join(f", {name}={value}" for name, value in preload.env.items())
    return Subject(preload.name, f"{preload.library.name}{said}", preload.library, preload.env)


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_DECIDED_HERE)}


class Mps:
    """An MPS control daemon of the bench, with the cap as the memory limit of its clients. It leaves the GPU's compute mode as it
    is, so clients of MPS and other processes use the GPU in turns."""

    def __init__(self, folder: Path, device_index: int) -> None:
        self._env = {
            "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
            "CUDA_VISIBLE_DEVICES": str(device_index),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }
        self._control = shutil.which("nvidia-cuda-mps-control")
        self._runs = False
        for name in ("pipe", "log"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def start(self) -> Subject:
        """Starts the daemon. Returns the subject. If MPS cannot run here, its `cannot` has the reason."""
        says = f"NVIDIA MPS, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT 0={CAP[:-2]}"
        if wrong := self._call("-d"):
            return Subject(MPS, says, drivers=("gpu",), cannot=wrong)
        self._runs = True
        # A client counts the daemon's devices, from 0.
        env = self._env | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={CAP[:-2]}", "CUDA_VISIBLE_DEVICES": "0"}
        return Subject(MPS, says, env=env, drivers=("gpu",))

    def stop(self) -> None:
        if self._runs:
            self._call(commands="quit -t 5\n")

    def _call(self, *options: str, commands: str = "") -> str:
        """Calls nvidia-cuda-mps-control. Returns its error; empty: none."""
        if not self._control:
            return "there is no nvidia-cuda-mps-control"
        try:
            done = subprocess.run(
                [self._control, *options], env=clean_environment() | self._env, input=commands,
                capture_output=True, text=True, timeout=30, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "nvidia-cuda-mps-control did not end within 30 s"
        said = (done.stderr or done.stdout).strip()[:200]
        return f"nvidia-cuda-mps-control: {said}" if done.returncode != 0 else ""
