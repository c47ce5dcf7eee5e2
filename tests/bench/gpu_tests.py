"""What the bench takes from tests/gpu: how a GPU is asked, how programs are ended, and how results are written."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "gpu"))
from figure import svg  # noqa: E402
from lab import Unavailable, of_toolkit  # noqa: E402
from machine import ROOT, describe  # noqa: E402
from nvml import Device, NvmlError  # noqa: E402
from report import markdown_table, write_raw  # noqa: E402
from session import end_all, ending, event_of  # noqa: E402

# fmt: off
__all__ = [
    "ROOT", "Device", "NvmlError", "Unavailable", "describe", "end_all", "ending", "event_of", "markdown_table",
    "of_toolkit", "svg", "write_raw",
]
