"""Asks and steers the process that it is imported in, if it runs under curb (`curb run -- python train.py`).

Each function calls the command `curb` of the same environment with --json and returns its answer, so it takes some
milliseconds and works as in a shell, for other processes of the same user too. Nothing happens at import.

In a notebook: `%load_ext curb`, then `%curb`. curb.jupyterhub has a spawner, curb.ray caps by fractions of GPUs.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
import threading
from typing import Any, Iterator

__all__ = ["CurbError", "cap", "capped", "command", "environment", "library", "machine", "nap", "release", "status"]

_DISTRIBUTION = "curb-gpu"
try:
    __version__ = importlib.metadata.version(_DISTRIBUTION)
except importlib.metadata.PackageNotFoundError:
    raise ImportError(
        "this is curb's module without its command and library; "
        f"in the folder of curb's sources, run: {sys.executable} -m pip install ."
    ) from None


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


def machine() -> dict[str, Any]:
    """What `curb ps --json` says of this machine: its GPUs, and what each process of all users holds of them.

    Returns {"gpus": [{…, "uses": […]}], "processes": […]}. A use has "posted", what its process shows to all users: the bytes that
    it holds, its cap, and the bytes that it waits for. What is not known is None. Raises CurbError if the command fails.
    """
    return _asked("ps")  # type: ignore[no-any-return]


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


def nap(pid: int | None = None) -> dict[str, Any]:
    """Moves a process out of its GPUs into host memory until its next CUDA call, which brings it back.

    In the process itself: at the end of a notebook's cell, when the GPU is not needed for a while. Returns the bytes that
    were moved. Raises CurbError if it stays, for example because a call of CUDA is under way.
    """
    return _asked("suspend", "--until-used", str(_pid(pid)))[0]  # type: ignore[no-any-return]


_bodies: dict[int, list[tuple[str, set[str]]]] = {}  # of `capped` by process, as they began: size and GPUs
_before: dict[tuple[int, str], str | None] = {}  # the cap that `cap` had set for a GPU before the first of them
_locks: dict[int, threading.Lock] = {}  # by process: that of a forked child is free


@contextlib.contextmanager
def capped(size: str, pid: int | None = None, gpu: str | None = None) -> Iterator[None]:
    """A cap for the body of a `with`; behind it the caps that `cap` had set before hold again, or those of the policy.

    Bodies may nest, and those of several threads may overlap: the cap of the one that began last holds. When the last of them
    has ended, the caps from before the first one hold again. The process has used CUDA before: until then there is nothing
    that could be asked. Raises CurbError as `cap` does.
    """
    process = _pid(pid)
    with _lock():
        before = {use["books"]["uuid"]: use["books"]["live_cap"] for use in status(process)["gpus"] if use["books"]}
        gpus = {one["uuid"] for one in cap(size, process, gpu)["gpus"]}
        bodies = _bodies.setdefault(process, [])
        shared = gpus & {uuid for _, others in bodies for uuid in others}
        _before.update({(process, uuid): before.get(uuid) for uuid in gpus - shared})
        body = (size, gpus)
        bodies.append(body)
    try:
        with _lock():
            _put_in_force(process, shared)  # above the key by which another body has set its cap
        yield
    finally:
        with _lock():
            # By identity: another body may have the same size and GPUs.
            bodies[:] = [other for other in bodies if other is not body]
            _put_in_force(process, gpus)


def _lock() -> threading.Lock:
    return _locks.setdefault(os.getpid(), threading.Lock())


def _put_in_force(process: int, gpus: set[str]) -> None:
    """Sets the cap that the bodies of `capped` now want of each GPU; without one, the cap from before them. Locked."""
    for uuid in gpus:
        wanted = [size for size, named in _bodies[process] if uuid in named]
        if wanted:
            cap(wanted[-1], process, uuid)
            continue
        cap(None, process, uuid)
        before = _before.pop((process, uuid))
        if before is not None:
            cap(before, process, uuid)


def environment(cap: str | None = None, **options: str | bool) -> dict[str, str]:
    """The variables by which a program that is started with them runs under curb, for launchers that take variables.

    Of the cap and of other options of `curb run`, without dashes: environment("6GiB", nap="10m", steer=True) returns
    LD_PRELOAD, CURB_CAP, CURB_NAP and CURB_STEER. An LD_PRELOAD of this process stays, behind curb's.
    Raises CurbError if an option is wrong.
    """
    words = ["run", "--dry-run", "--quiet"]
    for name, value in {"cap": cap, **options}.items():
        if value is not None and value is not False:
            words.append("--" + name.replace("_", "-") + ("" if value is True else f"={value}"))
    others = [each for each in os.environ.get("LD_PRELOAD", "").replace(" ", ":").split(":") if each not in ("", library())]
    own = {name: value for name, value in os.environ.items() if not name.startswith("CURB_")}
    own["LD_PRELOAD"] = ":".join(others)
    shown = _run([*words, "--", "true"], own).stdout.splitlines()
    if "true" not in shown:
        raise CurbError(f"{', '.join(options)}: no option of curb run that limits a program; curb run --help lists those")
    settings = (line.partition("=") for line in shown[: shown.index("true")])
    return {name: shlex.split(value)[0] for name, _, value in settings if name == "LD_PRELOAD" or name.startswith("CURB_")}


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext curb`: adds the magic %curb."""
    from curb import _magic

    shell.register_magic_function(_magic.curb, "line", "curb")


def _pid(pid: int | None) -> int:
    return os.getpid() if pid is None else pid


def _run(words: list[str], variables: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Raises CurbError if the command fails without an answer in JSON."""
    run = subprocess.run(
        [command(), *words], env=variables, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
        errors="surrogateescape", check=False,
    )
    if run.returncode != 0 and not run.stdout:
        raise CurbError(run.stderr.strip() or f"curb {words[0]} ended with {run.returncode}")
    return run


def _asked(*words: str) -> Any:
    run = _run([*words, "--json"])
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
