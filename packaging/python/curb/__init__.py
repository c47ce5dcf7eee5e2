"""Asks and steers the process that it is imported in, if it runs under curb (`curb run -- python train.py`).

Each function calls the command `curb` of the same environment with --json and returns its answer, so it takes some
milliseconds and works as in a shell, for other processes of the same user too. Nothing happens at import.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
from typing import Any

__all__ = ["CurbError", "cap", "command", "library", "release", "status"]

_DISTRIBUTION = "curb-gpu"
__version__ = importlib.metadata.version(_DISTRIBUTION)


class CurbError(RuntimeError):
    """Why curb did not do it, in the words of the command."""


def _installed(path: str) -> str:
    """The absolute path of an installed file, by the list that pip wrote: right in any environment."""
    for file in importlib.metadata.files(_DISTRIBUTION) or []:
        if file.name == os.path.basename(path):
            found = os.path.normpath(str(file.locate()))  # the list has ../../curb/libcurb.so
            if found.endswith("/" + path) and os.path.exists(found):
                return found
    raise CurbError(f"{path} of {_DISTRIBUTION} {__version__} is not installed; run: pip install --force-reinstall {_DISTRIBUTION}")


def command() -> str:
    """The path of the command."""
    return _installed("bin/curb")


def library() -> str:
    """The path of libcurb.so, for LD_PRELOAD in job scripts and launchers."""
    return _installed("lib/curb/libcurb.so")


def status(pid: int | None = None) -> dict[str, Any]:
    """What `curb ps PID --json` says of a process: its GPUs with what it holds of each, its policy, its refusals.

    Returns {"process": …, "gpus": [{…, "books": …}]}. Raises CurbError if the process is not under curb, or cannot be asked,
    as for a moment after its first use of CUDA.
    """
    answer = _asked("ps", str(_pid(pid)))
    gpus = [{**{name: gpu[name] for name in gpu if name != "uses"}, **use} for gpu in answer["gpus"] for use in gpu["uses"]]
    return {"process": answer["processes"][0], "gpus": gpus}


def release(size: str | None = None, pid: int | None = None) -> dict[str, Any]:
    """Gives back memory that is cached and not used, `size` ("2GiB") being enough, and returns what each step has freed.

    Raises CurbError if the process could not be asked.
    """
    return _asked("release", str(_pid(pid)), *([] if size is None else ["--bytes", size]))[0]  # type: ignore[no-any-return]


def cap(size: str | None, pid: int | None = None, gpu: str | None = None) -> dict[str, Any]:
    """Sets the cap of a running process: "6GiB", "75%", or None for that of its policy again; `gpu`: a key as in policies.

    Returns the caps before and now by GPU. Raises CurbError if it is not in force.
    """
    words = ["cap", str(_pid(pid)), *(["--reset"] if size is None else [size]), *([] if gpu is None else ["--gpu", gpu])]
    return _asked(*words)[0]  # type: ignore[no-any-return]


def _pid(pid: int | None) -> int:
    return os.getpid() if pid is None else pid


def _asked(*words: str) -> Any:
    run = subprocess.run(
        [command(), *words, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    try:
        answer = json.loads(run.stdout) if run.stdout else None
    except ValueError:
        answer = None
    if run.returncode == 0 and answer is not None:
        return answer
    raise CurbError(_why(answer) or run.stderr.strip() or f"curb {words[0]} ended with {run.returncode}")


def _why(answer: Any) -> str:
    """The errors in an answer of `ps`, `release` or `cap`."""
    if isinstance(answer, list):
        return "; ".join(filter(None, map(_why, answer)))
    if not isinstance(answer, dict):
        return ""
    errors = [each["message"] for each in answer.get("errors") or []]
    errors += [f"process {each['pid']}: {each['trouble']}" for each in answer.get("processes") or [] if each.get("trouble")]
    return str(answer.get("error") or "; ".join(errors))
