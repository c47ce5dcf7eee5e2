"""Finds TensorFlow for the programs that need it, or fetches it by pip.

TensorFlow needs libraries of CUDA 12, and other versions of Python packages than PyTorch. So it is in a folder of its own, which
only its programs see. In this order:
  CURB_TENSORFLOW=SITE  a folder with an env.sh that sets the variables for TensorFlow
  the Python that runs the tests, if it has TensorFlow
  build/tensorflow      fetched by pip, if there is a network
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path

_VERSION = "2.21.0"
# TensorFlow's wheel contains no CUDA library. These two are small, and CUDA 13 has no replacement for them.
_PACKAGES = (f"tensorflow=={_VERSION}", "nvidia-cuda-runtime-cu12", "nvidia-cuda-cupti-cu12")
# The name that TensorFlow opens, and the CUDA 13 library that has the functions which it calls. cuDNN 9 works with both.
_OF_CUDA_13 = {
    "libcublas.so.12": "libcublas.so.13",
    "libcublasLt.so.12": "libcublasLt.so.13",
    "libcufft.so.11": "libcufft.so.12",
    "libcusolver.so.11": "libcusolver.so.12",
    "libcusparse.so.12": "libcusparse.so.12",
    "libnvJitLink.so.12": "libnvJitLink.so.13",
}
_PIP_TIMEOUT_S = 900
_failed: dict[Path, str] = {}
"""Why pip could not fetch it, by folder: many cases ask."""


class NoTensorFlow(RuntimeError):
    """TensorFlow is missing. The text says why."""


def environment(build: Path, fetch: bool = True) -> dict[str, str]:
    """Returns the variables that a program needs to import TensorFlow. Fetches it if it is missing, unless `fetch` is false.
    Raises NoTensorFlow."""
    if named := os.environ.get("CURB_TENSORFLOW"):
        return _variables(Path(named))
    if importlib.util.find_spec("tensorflow") is not None:
        return {}
    site = build / "tensorflow"
    if not (site / "env.sh").exists():
        if not fetch:
            raise NoTensorFlow("TensorFlow is not installed")
        if site in _failed:
            raise NoTensorFlow(_failed[site])
        try:
            _fetch(site)
        except NoTensorFlow as why:
            _failed[site] = str(why)
            raise
    return _variables(site)


def _variables(site: Path) -> dict[str, str]:
    """Returns the variables that SITE/env.sh sets."""
    file = site / "env.sh"
    if not file.exists():
        raise NoTensorFlow(f"there is no {file}")
    shell = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
    command = ["bash", "-c", 'source "$1" && env -0', "bash", str(file.resolve())]
    done = subprocess.run(command, env=shell, capture_output=True, text=True, timeout=60, check=True)
    found = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    return {name: value for name, value in found.items() if name not in (*shell, "PWD", "OLDPWD", "SHLVL", "_")}


def _fetch(site: Path) -> None:
    """Fetches it by pip. Writes env.sh last, so a folder without it is incomplete."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--upgrade", "--target", str(site), *_PACKAGES]
    try:
        done = subprocess.run(pip, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NoTensorFlow(f"TensorFlow is not installed, and pip took more than {_PIP_TIMEOUT_S} s to fetch it") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise NoTensorFlow(f"TensorFlow is not installed, and pip could not fetch it: {last[:200]}")
    libraries = site / "lib"
    libraries.mkdir(exist_ok=True)
    for wheel in ("cuda_runtime/lib/libcudart.so.12", "cuda_cupti/lib/libcupti.so.12"):
        _link(libraries, site / "nvidia" / wheel)
    paths = [libraries]
    if toolkit := _libraries_of_cuda_13():
        for name, other in _OF_CUDA_13.items():
            _link(libraries, toolkit / other, name)
        paths.append(toolkit)
    values = {
        "PYTHONPATH": str(site),
        "LD_LIBRARY_PATH": ":".join([*map(str, paths), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]),
        "XLA_FLAGS": f"--xla_gpu_cuda_data_dir={os.environ.get('CUDA_HOME', '/usr/local/cuda')}",
    }
    (site / "env.sh").write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items()))


def _libraries_of_cuda_13() -> Path | None:
    """Returns their folder. None: the machine has no toolkit, or one of CUDA 12, which TensorFlow finds by itself."""
    found = sorted(Path("/usr/local").glob("cuda*/**/libcublas.so.13"))
    return found[0].parent if found else None


def _link(folder: Path, library: Path, name: str = "") -> None:
    link = folder / (name or library.name)
    link.unlink(missing_ok=True)
    link.symlink_to(library)
