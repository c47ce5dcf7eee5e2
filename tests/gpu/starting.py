"""The options that run.py and paths.py share, and the lab that both make from them."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab import Lab
from machine import ROOT
from measuring.nvml import Device, NvmlError

_RESULTS = ROOT / "docs" / "results"


def parser_of(prog: str, text: str | None, what: str) -> argparse.ArgumentParser:
    """`text`: the program's docstring, whose first line is the description. `what`: "case" or "path"."""
    parser = argparse.ArgumentParser(prog=prog, description=(text or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=_RESULTS, metavar="DIR", help="the folder for the results")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=f"only {what}s whose name contains one of these words")
    parser.add_argument("--gpu", type=int, default=0, metavar="N", help="nvidia-smi's index of the GPU (default 0)")
    parser.add_argument("--strict", action="store_true", help="exit 77 where there is no GPU")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the programs' stderr and curb's logs there")
    parser.add_argument("--list", action="store_true", help=f"print the names of the {what}s and exit")
    return parser


def chosen(names: Iterable[str], words: Sequence[str], what: str) -> list[str]:
    """Returns the names that contain one of the words, or all if there are no words. Exits if there is none."""
    found = [name for name in names if not words or any(word in name for word in words)]
    if not found:
        sys.exit(f"gpu-test: no {what} has {' or '.join(words)} in its name; --list prints the names")
    return found


@contextmanager
def lab_for(options: argparse.Namespace, names: Sequence[str] = (), quick: bool = False) -> Iterator[Lab]:
    """Makes the lab. Exits if there is no GPU, or no libcurb.so."""
    try:
        device = Device(options.gpu)
    except NvmlError:
        print("skipped: no NVIDIA GPU here (no NVML, or no device)")
        sys.exit(77 if options.strict else 0)
    build = ROOT / "build"
    library = Path(os.environ.get("CURB_LIBRARY") or build / "lib" / "libcurb.so").resolve()
    if not library.exists():
        sys.exit(f"gpu-test: there is no {library}; run scripts/build, or name another one in CURB_LIBRARY")
    with tempfile.TemporaryDirectory(prefix="curb-gpu-test-") as temporary:
        yield Lab(device, library, build, (options.keep or Path(temporary)).resolve(), quick, names)
