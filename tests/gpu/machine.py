"""Describes the machine and the software that the results come from."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

from measuring.nvml import Device, NvmlError

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("torch", "jax", "jaxlib", "cupy-cuda13x", "cupy-cuda12x", "numpy", "numba", "numba-cuda", "triton")


def describe(device: Device | None, library: Path | None = None) -> dict[str, str]:
    """Returns GPU, driver, commit, packages and so on. A copy of the tree without history has no commit, so the digest of
    `library` names the build."""
    asked = {"gpu": device.name, "driver": device.driver_version, "cuda": device.cuda_version} if device else {}
    return {
        **{name: _or_unknown(ask) for name, ask in asked.items()},
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": os.environ.get("CURB_COMMIT") or _git_head(),
        **({"libcurb.so": hashlib.sha256(library.read_bytes()).hexdigest()[:12]} if library else {}),
        "python": platform.python_version(),
        "kernel": platform.release(),
        **_versions(),
    }


def differences(earlier: dict[str, str], now: dict[str, str]) -> str:
    """Returns in what machine and build of two runs differ: empty if one may continue the other."""
    names = (name for name in now if name not in ("date", "commit", "load") and earlier.get(name) != now[name])
    return ", ".join(f"{name} {earlier.get(name)}, now {now[name]}" for name in names)


def _or_unknown(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except NvmlError:
        return "unknown"


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _git_head() -> str:
    try:
        command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
