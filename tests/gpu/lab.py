"""The machine, the build and the folder that a case works with, and the ways to start a program, bare or under curb."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow_site
from measuring.nvml import Device
from row import Row
from session import Job, Session, Unavailable

PROGRAMS = Path(__file__).parent / "programs"

# Beginnings of the variables that programs do not get from the shell: they would change a "default" case.
_NOT_OF_THE_SHELL = ("LD_PRELOAD", "CURB_", "CUDA_MPS_", "PYTORCH_", "XLA_", "TF_")


def shell_environment() -> dict[str, str]:
    """Returns the shell's variables that programs get. Those of the simulated driver, CURB_SIM_*, are among them."""
    return {
        name: value for name, value in os.environ.items() if name.startswith("CURB_SIM_") or not name.startswith(_NOT_OF_THE_SHELL)
    }


COLUMNS = ("bare", "curb", "curb+cache", "curb+naps", "curb+turns", "curb+trace", "curb+stacks", "mps", "direct")
"""Names of curb's own columns and subjects, here and in tests/bench."""


@dataclass(frozen=True)
class Preload:
    """Another library in front of the driver, given as NAME=/path/lib.so[,VAR=value...]. NAME is the head of its column."""

    name: str
    library: Path
    env: dict[str, str]

    @property
    def variables(self) -> dict[str, str]:
        return self.env | {"LD_PRELOAD": str(self.library)}

    @staticmethod
    def parse(text: str) -> Preload:
        """Raises ArgumentTypeError if the library does not exist, or the name is one of curb's own."""
        name, _, rest = text.partition("=")
        library, *variables = rest.split(",")
        path = Path(library).resolve()
        if not name or name in COLUMNS or not path.is_file() or any("=" not in variable for variable in variables):
            why = "is not NAME=/path/lib.so[,VAR=value...], or there is no such file, or curb uses the name itself"
            raise argparse.ArgumentTypeError(f"{text} {why}")
        return Preload(name, path, dict(variable.split("=", 1) for variable in variables))


@dataclass
class Lab:
    device: Device
    library: Path
    build: Path
    folder: Path
    quick: bool
    names: Sequence[str] = ()
    """The selected cases, or paths."""
    _compiled: dict[str, Path] = field(default_factory=dict)
    _tensorflow: dict[str, str] | None = None

    def job(self, name: str, cap: str | None, growth: dict[str, str] | None = None, **more: object) -> Job:
        """Writes a policy with this cap (None: no cap) and growth for every device. `more`: further members."""
        folder = self.folder_of(name)
        folder.mkdir(parents=True, exist_ok=True)
        job = Job(folder, cap, more, growth)
        job.policy.write_text(job.text())
        job.log_file.unlink(missing_ok=True)  # of an earlier run with --keep: curb appends
        return job

    def bare(self, argv: list[str], name: str, env: dict[str, str] | None = None, devices: Sequence[Device] = ()) -> Session:
        return Session(argv, self.environment(env), devices or [self.device], self.folder_of(name))

    def capped(self, argv: list[str], job: Job, env: dict[str, str] | None = None, devices: Sequence[Device] = ()) -> Session:
        """Starts it with LD_PRELOAD and CURB_POLICY, not by `curb run`. Watches `devices` instead of the lab's if given."""
        return Session(argv, self.capped_environment(job, env), devices or [self.device], job.folder)

    def capped_environment(self, job: Job, env: dict[str, str] | None = None) -> dict[str, str]:
        return self.environment(env) | {"LD_PRELOAD": str(self.library), "CURB_POLICY": str(job.policy)}

    def run_by_curb(self, argv: list[str], job: Job, env: dict[str, str] | None = None, devices: Sequence[Device] = ()) -> Session:
        """Starts it by `curb run`, whose process becomes the program. Watches `devices` instead of the lab's if given."""
        command = [str(self.built("bin/curb")), "run", "--policy", str(job.policy), "--", *argv]
        environment = self.environment(env) | {"CURB_LIBRARY": str(self.library)}
        return Session(command, environment, devices or [self.device], job.folder)

    def python(self, program: str, *arguments: str) -> list[str]:
        return [sys.executable, str(PROGRAMS / program), *arguments]

    def need(self, module: str) -> dict[str, str]:
        """Returns the variables that a program needs to import this Python package. Raises Unavailable."""
        if module != "tensorflow":
            if importlib.util.find_spec(module) is None:
                raise Unavailable(f"the Python package {module} is not installed")
            return {}
        if self._tensorflow is None:
            try:
                self._tensorflow = tensorflow_site.environment(self.build)
            except tensorflow_site.NoTensorFlow as why:
                raise Unavailable(str(why)) from None
        return self._tensorflow

    def compiled(self, source: str, *options: str) -> list[str]:
        """Compiles a program with nvcc for the GPU of this machine, once for each set of options. Returns its command."""
        name = "-".join([Path(source).stem, *(option.strip("-") for option in options)])
        if name not in self._compiled:
            nvcc = of_toolkit("nvcc")
            # An rpath, because LD_LIBRARY_PATH would replace the libraries that the frameworks bring.
            runtime = f"-rpath={Path(nvcc).resolve().parent.parent}/lib64"
            command = [nvcc, "-O2", "-std=c++17", "-arch=native", "-Xlinker", runtime]
            self._compiled[name] = _compile([*command, str(PROGRAMS / source), *options], self.folder / name)
        return [str(self._compiled[name])]

    def cubin(self, source: str) -> Path:
        """Compiles a module for the GPU of this machine. Returns its file."""
        output = self.folder / Path(source).with_suffix(".cubin").name
        return _compile([of_toolkit("nvcc"), "-cubin", "-arch=native", str(PROGRAMS / source)], output)

    def built(self, name: str) -> Path:
        """Returns a file of the build. Raises Unavailable if it is not there."""
        path = self.build / name
        if not path.exists():
            raise Unavailable(f"there is no {name} in the build")
        return path

    def curb(self, *words: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Runs the command `curb`."""
        command = [str(self.built("bin/curb")), *words]
        environment = shell_environment() | {"CURB_LIBRARY": str(self.library)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)

    def folder_of(self, name: str) -> Path:
        return self.folder / "".join(c if c.isalnum() else "-" for c in name)

    def environment(self, more: dict[str, str] | None) -> dict[str, str]:
        # NVML counts devices in the order of the bus; CUDA does so only with this variable.
        device = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(self.device.index)}
        values = shell_environment() | device | {"PYTHONUNBUFFERED": "1"} | (more or {})
        # Programs in folders of PROGRAMS import what is in it.
        return values | {"PYTHONPATH": os.pathsep.join([*filter(None, [values.get("PYTHONPATH")]), str(PROGRAMS)])}


STEERED: dict[str, Any] = {"frameworks": {"steer": True}}
"""Members of a policy that steers frameworks to allocators that can release."""


def torch_allocator(conf: str) -> dict[str, str]:
    """Returns the variables that select PyTorch's allocator. Before version 2.9 only PYTORCH_CUDA_ALLOC_CONF did."""
    return {"PYTORCH_ALLOC_CONF": conf, "PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {}


def _compile(command: list[str], output: Path) -> Path:
    output.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-1500:]}")
    return output


def of_toolkit(name: str) -> str:
    """Returns the path of a program of the CUDA toolkit. Raises Unavailable."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    usual = [path for path in (toolkit / "bin" / name, toolkit / name / name) if path.exists()]
    found = shutil.which(name) or (str(usual[0]) if usual else None)
    if found is None:
        raise Unavailable(f"{name} is not installed")
    return found


Case = Callable[[Lab, Row], None]
"""Fills its row step by step, so that the results before a failure are kept."""
