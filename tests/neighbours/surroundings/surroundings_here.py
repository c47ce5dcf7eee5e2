"""A case of surroundings_test.py, its folder, and the limits and filters that it may set."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FIRST_USER = 55001
"""Root becomes this user or a later one in cases about missing permissions. One for each case: limits count by user. Other tests
have users from 54321 on."""
CAP = "4GiB"
LIBC = ctypes.CDLL(None, use_errno=True)
PATIENCE_S = 90.0


def asked_in_time(words: list[str], good: tuple[int, ...], **more: Any) -> subprocess.CompletedProcess[str]:
    """Repeats a command until it ends with a good status: a thread makes a process's socket some time after cuInit."""
    until = time.monotonic() + PATIENCE_S / 3
    while True:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, **more
        )
        if done.returncode in good or time.monotonic() > until:
            return done
        time.sleep(0.02)


class Skip(Exception):
    """The surroundings cannot be made here; the text says why."""


class Here:
    """A folder for one case: runtime directory, policy, and copies of the programs and libraries, which any user may read."""

    def __init__(self, root: Path, build: Path, number: int) -> None:
        self.folder = folder = root / str(number)
        self.runtime = folder / "runtime"
        self.build, self.user = build, FIRST_USER + number
        self.bin = folder / "b"
        self.curb, self.library = self.bin / "curb", self.bin / "libcurb.so"
        self.program, self.clock = self.bin / "program", self.bin / "clock.so"
        self.policy = folder / "job.json"
        self.environment = {
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(folder),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "LD_LIBRARY_PATH": str(self.bin),
            "CURB_LIBRARY": str(self.library),
        }

    def __enter__(self) -> Here:
        self.bin.mkdir(parents=True)
        for source in ("bin/curb", "lib/libcurb.so", "sim/libcuda.so.1", "sim/libnvidia-ml.so.1"):
            shutil.copy(self.build / source, self.bin)
        shutil.copy(self.build / "tests/surroundings_program", self.program)
        shutil.copy(self.build / "tests/libsurroundings_clock.so", self.clock)
        self.runtime.mkdir(mode=0o700)
        self.set_policy()
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def set_policy(self, **more: object) -> None:
        self.policy.write_text(json.dumps({"version": 1, "gpu": {"*": {"cap": CAP}}, **more}))

    def under_curb(self, case: Case) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "CURB_POLICY": str(self.policy)} | case.under_curb

    def all_under_curb(self) -> dict[str, str]:
        return self.environment | self.under_curb(Case(""))

    def run(self, under_curb: bool, **more: Any) -> subprocess.CompletedProcess[str]:
        """Runs the program in this folder's environment."""
        environment = self.all_under_curb() if under_curb else self.environment
        usual = {"env": environment, "capture_output": True, "text": True, "timeout": 90, "stdin": subprocess.DEVNULL}
        done: subprocess.CompletedProcess[str] = subprocess.run([self.program], **(usual | more))  # type: ignore[call-overload]
        return done

    def wrapped(self, case: Case, beside: int | None = None) -> list[str]:
        """Returns the command that makes the surroundings, then executes the program. `beside`: joins those of that process."""
        if not case.shell:
            return []
        if beside is not None:
            return ["nsenter", "-t", str(beside), *(["-U", "--preserve-credentials"] if os.geteuid() else []), "-m"]
        require_namespaces()
        script = self.text(case.shell) + '\nexec "$@"'
        return ["unshare", *(["-mUr"] if os.geteuid() else ["-m"]), "sh", "-c", "set -e\n" + script, "sh"]

    def text(self, text: str) -> str:
        """Replaces @ by the folder of the case."""
        return re.sub(r"(?<!\$)@", str(self.folder), text)

    def started(self, case: Case, environment: dict[str, str]) -> list[str]:
        """Returns the command that starts the program with exactly this environment."""
        variables = [f"{name}={self.text(value)}" for name, value in environment.items() if name not in case.without]
        return [*map(self.text, case.through), "env", "-i", *variables, str(self.program), *case.program_words]

    def prepared(self, case: Case) -> Callable[[], None] | None:
        def prepare() -> None:
            if case.prepare:
                case.prepare()
            if case.as_user and os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(self.user, self.user, self.user)
                os.setresuid(self.user, self.user, self.user)

        return prepare if case.prepare or case.as_user else None


@dataclass
class Case:
    name: str
    shell: str = ""
    """A script that runs before the program, in a mount namespace of its own. @: the folder of the case."""
    prepare: Callable[[], None] | None = None
    """Runs in the child, before exec."""
    program_words: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    """The command that starts the program. @: the folder of the case."""
    environment: dict[str, str] = field(default_factory=dict)
    under_curb: dict[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    """Variables that are not set."""
    as_user: bool = False
    before: Callable[[Here], None] | None = None
    meanwhile: Callable[[Here, int], list[str]] | None = None
    after: Callable[[Here], list[str]] | None = None
    whole: Callable[[Here], list[str]] | None = None
    """Runs the whole case, after `before`. The other members do not apply."""
    asked: bool | None = False
    """True: curb release must reach it. False: it may. None: no command runs for it, because its stdin is not available."""
    refused: bool = False
    lines: int = 1
    says: str = ""


def require_namespaces() -> None:
    words = ["unshare", *(["-mUr"] if os.geteuid() else ["-m"]), "mount", "-t", "tmpfs", "none", "/mnt"]
    if subprocess.run(words, capture_output=True).returncode != 0:
        raise Skip("no mount namespace can be made here")


def require_root(_: Here | None = None) -> None:
    if os.geteuid() != 0:
        raise Skip("it needs root")


def require_program(name: str) -> None:
    if not shutil.which(name):
        raise Skip(f"there is no {name}")


def limit(which: int, bound: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(which, (bound, bound))


def give_to_user(here: Here) -> None:
    if os.geteuid() == 0:
        os.chown(here.runtime, here.user, here.user)
        os.chown(here.folder, here.user, here.user)


# System calls that a filter refuses (seccomp(2)), with their numbers on x86-64. From 424 on all machines have the same.

NUMBERS = {
    "socket": 41, "connect": 42, "bind": 49, "listen": 50, "socketpair": 53, "getdents64": 217, "readlink": 89,
    "unshare": 272, "eventfd2": 290, "inotify_init1": 294, "inotify_add_watch": 254, "prctl": 157,
    "process_vm_readv": 310, "getrandom": 318, "memfd_create": 319, "statx": 332, "rseq": 334, "pidfd_send_signal": 424,
    "io_uring_setup": 425, "pidfd_open": 434, "clone3": 435, "close_range": 436, "openat2": 437, "membarrier": 324,
    "userfaultfd": 323, "bpf": 321, "perf_event_open": 298, "ptrace": 101, "sched_getaffinity": 204, "getcwd": 79,
    "signalfd4": 289, "timerfd_create": 283, "pipe2": 293, "epoll_create1": 291, "fchmodat2": 452,
}  # fmt: skip
KILL = 0x80000000
ENOSYS, EPERM = 0x00050000 | 38, 0x00050000 | 1


class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(Instruction))]


def without_calls(answer: int, *names: str) -> Callable[[], None]:
    """Returns a function that sets a filter: these calls get this answer, all others pass."""

    def prepare() -> None:
        calls = [NUMBERS[name] for name in names]
        instructions = [Instruction(0x20, 0, 0, 0)]  # the number
        instructions += [Instruction(0x15, len(calls) - i, 0, number) for i, number in enumerate(calls)]
        instructions += [Instruction(0x06, 0, 0, 0x7FFF0000), Instruction(0x06, 0, 0, answer)]
        block = (Instruction * len(instructions))(*instructions)
        if LIBC.prctl(38, 1, 0, 0, 0) != 0 or LIBC.prctl(22, 2, ctypes.byref(Filter(len(instructions), block))) != 0:
            os._exit(96)

    return prepare


def need_filters(_: Here) -> None:
    if platform.machine() != "x86_64":
        raise Skip("the numbers of system calls are those of x86-64")


MODERN = ("inotify_init1", "eventfd2", "getrandom", "openat2", "clone3", "close_range", "statx", "memfd_create",
          "pidfd_open", "rseq", "process_vm_readv", "membarrier", "sched_getaffinity", "getdents64")  # fmt: skip
# docs/SYSTEM-WIDE.md lists the calls that curb makes. These are not among them.
NEVER_MADE = ("eventfd2", "memfd_create", "pidfd_open", "pidfd_send_signal", "process_vm_readv", "statx",
              "io_uring_setup", "userfaultfd", "bpf", "perf_event_open", "ptrace", "signalfd4",
              "timerfd_create", "epoll_create1", "pipe2", "fchmodat2")  # fmt: skip
