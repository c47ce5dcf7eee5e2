"""What a lane runs under: nothing, curb by one policy or another, another preload, or NVIDIA's MPS with a limit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CAP = "64GiB"
_CACHE = {"max": "32GiB", "idle": "1h"}
# What must not come from the shell that runs the bench.
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

    def preload(self, folder: Path) -> dict[str, str]:
        """What puts it before a program; a policy is written into the folder."""
        env = dict(self.env)
        if self.library:
            env["LD_PRELOAD"] = str(self.library)
        if self.policy is not None:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "job.json"
            trace = {"trace": {"file": str(folder / "trace.json")}} if self.name == TRACE else {}
            path.write_text(json.dumps({"version": 1, **self.policy, **trace}, indent=2))
            env["CURB_POLICY"] = str(path)
        return env


BARE, CURB, CACHED, TRACE, MPS = "bare", "curb", "curb+cache", "curb+trace", "mps"
DIRECT = "direct"
"""No subject, but what one is held against: the driver's own functions in the subject's own process."""


def own_subjects(library: Path) -> list[Subject]:
    capped = {"gpu": {"*": {"cap": CAP}}}
    cached = {"gpu": {"*": {"cap": CAP, "cache": _CACHE}}}
    return [
        Subject(BARE, "nothing before the driver"),
        Subject(CURB, f"libcurb.so, cap {CAP}, no cache", library, policy=capped),
        Subject(CACHED, f"libcurb.so, cap {CAP}, a cache of {_CACHE['max']}", library, policy=cached),
        Subject(TRACE, f"libcurb.so, cap {CAP}, and a trace", library, policy=capped),
    ]


def peer(text: str) -> Subject:
    """NAME=/path/lib.so[,VAR=value...]; raises ValueError with what is wrong."""
    name, _, rest = text.partition("=")
    library, *variables = rest.split(",")
    path = Path(library).resolve()
    if not name or not library:
        raise ValueError(f"{text}: NAME=/path/lib.so[,VAR=value...] or mps is meant")
    if name in (BARE, CURB, CACHED, TRACE, MPS, DIRECT):
        raise ValueError(f"{text}: {name} is another's name")
    if not path.exists():
        raise ValueError(f"{text}: there is no {library}")
    if wrong := [variable for variable in variables if "=" not in variable]:
        raise ValueError(f"{text}: {wrong[0]} is not VAR=value")
    env = {variable.partition("=")[0]: variable.partition("=")[2] for variable in variables}
    said = "".join(f", {variable}" for variable in variables)
    return Subject(name, f"{path.name}{said}", path, env)


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_DECIDED_HERE)}


class Mps:
    """A control daemon of one's own, for clients that are told its folder, each limited to the cap. The compute mode of
    the GPU stays as it is: clients of MPS and other processes share it in turns."""

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
        """The subject, which says so if it cannot be had."""
        says = f"NVIDIA MPS, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT 0={CAP[:-2]}"
        if not self._control:
            return Subject(MPS, says, drivers=("gpu",), cannot="there is no nvidia-cuda-mps-control")
        try:
            done = subprocess.run(
                [self._control, "-d"], env=clean_environment() | self._env, capture_output=True, text=True, timeout=20
            )
        except subprocess.TimeoutExpired:
            return Subject(MPS, says, drivers=("gpu",), cannot="nvidia-cuda-mps-control -d did not come back")
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()[:200]
            return Subject(MPS, says, drivers=("gpu",), cannot=f"nvidia-cuda-mps-control -d: {said}")
        self._runs = True
        # The client sees the daemon's devices, which begin at 0.
        env = self._env | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={CAP[:-2]}", "CUDA_VISIBLE_DEVICES": "0"}
        return Subject(MPS, says, env=env, drivers=("gpu",))

    def stop(self) -> None:
        if not self._runs or not self._control:
            return
        try:
            subprocess.run(
                [self._control],
                env=clean_environment() | self._env,
                input="quit -t 5\n",
                text=True,
                timeout=30,
                capture_output=True,
            )
        except subprocess.TimeoutExpired:
            pass
