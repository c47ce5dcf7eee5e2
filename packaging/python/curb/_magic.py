"""The magic %curb of IPython: curb.load_ipython_extension registers it."""

from __future__ import annotations

import os
import shlex
import subprocess

from IPython.core.error import UsageError

import curb as module


def curb(line: str) -> None:
    """Asks and steers this kernel, which runs under curb.

    %curb                   what it holds of each GPU
    %curb release [SIZE]    gives back memory that is cached and not used
    %curb cap SIZE          another cap for this kernel; %curb cap --reset: that of its policy again
    %curb ps                any other command, as in a shell
    """
    words = shlex.split(line)
    own = str(os.getpid())
    try:
        if not words:
            print(summary())
            return
        if words[0] == "release" and len(words) <= 2 and not words[-1].startswith("-"):
            words = ["release", own, *(["--bytes", words[1]] if len(words) == 2 else [])]
        elif words[0] == "cap" and len(words) == 2:
            words = ["cap", own, words[1]]
        run = subprocess.run(
            [module.command(), *words], stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace",
            check=False,
        )
    except module.CurbError as error:
        raise UsageError(str(error)) from None
    print(run.stdout, end="")
    if run.returncode != 0:
        raise UsageError(run.stderr.strip() or f"curb {words[0]} ended with {run.returncode}")
    print(run.stderr, end="")


def summary() -> str:
    """A line for each GPU that this process uses."""
    lines = []
    for gpu in module.status()["gpus"]:
        books = gpu["books"]
        if books:
            cap = "without a cap" if books["cap"] is None else f"of a cap of {size(books['cap'])}"
            cached = f", {size(books['cached'])} of it cached" if books["cached"] else ""
            refused = sum(books["refused"].values())
            lines.append(f"cuda:{books['ordinal']}: {size(books['held'])} held {cap}{cached}; {refused} refused")
    return "\n".join(lines) or "this kernel uses no GPU yet"


def size(count: int) -> str:
    """As the command prints it: "1.5 GiB"."""
    unit = "MiB" if count < 1 << 30 else "GiB"
    digits = f"{count / (1 << (20 if unit == 'MiB' else 30)):.2f}"
    return f"{digits.rstrip('0').rstrip('.')} {unit}"
