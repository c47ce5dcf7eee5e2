"""The parts of tests/gpu that the bench uses too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "gpu"))
from lab import COLUMNS, Preload, Unavailable, of_toolkit, shell_environment  # noqa: E402
from machine import ROOT, describe, differences  # noqa: E402
from measuring.mps import MpsDaemon  # noqa: E402
from measuring.nvml import Device, NvmlError  # noqa: E402
from report import markdown_table, newest, write_raw  # noqa: E402
from session import Program, ProgramFailed, end_all  # noqa: E402

# fmt: off
__all__ = [
    "COLUMNS", "ROOT", "Device", "MpsDaemon", "NvmlError", "Preload", "Program", "ProgramFailed", "Unavailable", "describe", "differences",
    "end_all", "markdown_table", "newest", "of_toolkit", "shell_environment", "write_raw",
]
