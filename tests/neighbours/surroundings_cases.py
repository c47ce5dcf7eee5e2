"""The cases of surroundings_test.py."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

USER = 54321
"""Whom root becomes where a case is about what users may not."""
CAP = "4GiB"
LIBC = ctypes.CDLL(None, use_errno=True)


class Skip(Exception):
    """The surroundings cannot be made here, and why."""


class Here:
    """A folder for one case: runtime directory, policy, and copies of what runs, which any user may read."""

    def __init__(self, folder: Path, curb: Path, library: Path, sim: Path, program: Path, clock: Path) -> None:
        self.folder, self.runtime = folder, folder / "runtime"
        self.built = (curb, library, sim, program, clock)
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
        curb, library, sim, program, clock = self.built
        for source, copy in ((curb, "curb"), (library, "libcurb.so"), (program, "program"), (clock, "clock.so")):
            shutil.copy(source, self.bin / copy)
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            shutil.copy(sim / name, self.bin / name)
        self.runtime.mkdir(mode=0o700)
        self.set_policy()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def set_policy(self, **more: object) -> None:
        self.policy.write_text(json.dumps({"version": 1, "gpu": {"*": {"cap": CAP}}, **more}))

    def under_curb(self, case: Case) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "CURB_POLICY": str(self.policy)} | case.under_curb

    def wrapped(self, case: Case, beside: int | None = None) -> list[str]:
        """What makes the surroundings and then becomes the program; `beside`: joins those of a process."""
        if not case.shell:
            return []
        if beside is not None:
            # Neither a folder of curb's own nor a namespace of its own: as that process sees them.
            return ["nsenter", "-t", str(beside), *(["-U", "--preserve-credentials"] if os.geteuid() else []), "-m"]
        require_namespaces()
        script = self.text(case.shell) + '\nexec "$@"'
        return ["unshare", *(["-mUr"] if os.geteuid() else ["-m"]), "sh", "-c", "set -e\n" + script, "sh"]

    def text(self, text: str) -> str:
        """With the folder of the case in place of @."""
        return re.sub(r"(?<!\$)@", str(self.folder), text)

    def started(self, case: Case, environment: dict[str, str]) -> list[str]:
        """The program, and what starts it, on whose own environment nothing of this depends."""
        variables = [f"{name}={self.text(value)}" for name, value in environment.items() if name not in case.without]
        return [*map(self.text, case.through), "env", "-i", *variables, str(self.program), *case.program_words]

    def prepared(self, case: Case) -> Callable[[], None] | None:
        def prepare() -> None:
            if case.prepare:
                case.prepare()
            if case.as_user and os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(USER, USER, USER)
                os.setresuid(USER, USER, USER)

        return prepare if case.prepare or case.as_user else None


@dataclass
class Case:
    name: str
    shell: str = ""
    """In a mount namespace of its own, before the program becomes of it. @: the folder of the case."""
    prepare: Callable[[], None] | None = None
    """In the child, before exec."""
    program_words: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    """What starts the program, as root of its own or the like. @: the folder of the case."""
    environment: dict[str, str] = field(default_factory=dict)
    under_curb: dict[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    """Variables that are not set."""
    as_user: bool = False
    before: Callable[[Here], None] | None = None
    meanwhile: Callable[[Here, int], list[str]] | None = None
    after: Callable[[Here], list[str]] | None = None
    whole: Callable[[Here], list[str]] | None = None
    """In place of all that."""
    asked: bool | None = False
    """curb release reaches it, for certain; None: it is not asked, for its stdin is not to be had."""
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


# Limits.


def limit(which: int, soft: int, hard: int | None = None) -> Callable[[], None]:
    return lambda: resource.setrlimit(which, (soft, soft if hard is None else hard))


def give_to_user(here: Here) -> None:
    if os.geteuid() == 0:
        os.chown(here.runtime, USER, USER)
        os.chown(here.folder, USER, USER)


# System calls that are refused (seccomp(2)). The numbers are those of x86-64; those from 424 on are everybody's.

NUMBERS = {
    "socket": 41, "connect": 42, "bind": 49, "listen": 50, "socketpair": 53, "getdents64": 217, "readlink": 89,
    "unshare": 272, "eventfd2": 290, "inotify_init1": 294, "inotify_add_watch": 254, "prctl": 157, "accept4": 288,
    "process_vm_readv": 310, "getrandom": 318, "memfd_create": 319, "statx": 332, "rseq": 334, "pidfd_send_signal": 424,
    "io_uring_setup": 425, "pidfd_open": 434, "clone3": 435, "close_range": 436, "openat2": 437, "membarrier": 324,
    "userfaultfd": 323, "bpf": 321, "perf_event_open": 298, "ptrace": 101, "sched_getaffinity": 204, "getcwd": 79,
    "signalfd4": 289, "timerfd_create": 283, "pipe2": 293, "epoll_create1": 291, "clone": 56, "fchmodat2": 452,
}  # fmt: skip
KILL = 0x80000000
ENOSYS, EPERM = 0x00050000 | 38, 0x00050000 | 1


class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(Instruction))]


def without_calls(answer: int, *names: str) -> Callable[[], None]:
    """A filter that answers these calls so, and lets all others through."""

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
# What curb does without: docs/SYSTEM-WIDE.md has the calls that it makes.
NEVER_MADE = ("eventfd2", "openat2", "memfd_create", "pidfd_open", "pidfd_send_signal", "process_vm_readv", "statx",
              "io_uring_setup", "userfaultfd", "bpf", "perf_event_open", "ptrace", "membarrier", "signalfd4",
              "timerfd_create", "epoll_create1", "pipe2", "fchmodat2")  # fmt: skip


# Files.


def runtime_folder(make: Callable[[Path], None]) -> Callable[[Here], None]:
    return lambda here: make(here.runtime / "curb")


def anothers(folder: Path) -> None:
    require_root()
    folder.mkdir(mode=0o700)
    os.chown(folder, USER + 1, USER + 1)


def mode(bits: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        folder.mkdir()
        folder.chmod(bits)

    return make


def link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to("elsewhere")


def log_to(path: str, level: str = "info") -> Callable[[Here], None]:
    return lambda here: here.set_policy(log={"level": level, "file": here.text(path)})


def trace_to(path: str) -> Callable[[Here], None]:
    return lambda here: here.set_policy(trace={"file": here.text(path)})


def fifo_log(here: Here) -> None:
    os.mkfifo(here.folder / "log")
    log_to("@/log", "warning")(here)


def fifo_trace(here: Here) -> None:
    os.mkfifo(here.folder / "trace")
    trace_to("@/trace")(here)


def policy_is(make: Callable[[Path], None]) -> Callable[[Here], None]:
    def before(here: Here) -> None:
        here.policy.unlink()
        make(here.policy)

    return before


def sparse_gigabytes(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(8 << 30)


def starts_at_once(here: Here) -> list[str]:
    """A look at such a policy before main must not read it all, in every program that is started."""
    child = os.fork()
    if child == 0:
        os.execve("/bin/true", ["true"], here.under_curb(Case("")))
    _, _, used = os.wait4(child, 0)
    spent = used.ru_utime + used.ru_stime
    return [] if spent < 0.5 else [f"/bin/true takes {spent:.2f} s of CPU"]


def unreadable(here: Here) -> None:
    give_to_user(here)
    here.policy.chmod(0)


def both_full(here: Here) -> None:
    here.set_policy(log={"level": "info", "file": f"{here.folder}/full/log"}, trace={"file": f"{here.folder}/full/trace"})
    (here.folder / "full").mkdir()


def full_then_policy(here: Here, pid: int) -> list[str]:
    """An edit of which nothing arrived on the disk: the last good policy stays."""
    subprocess.run(["sh", "-c", f"cat {here.policy} /dev/zero >/dev/full 2>/dev/null; : >{here.policy}"], check=False)
    for _ in range(2000):
        done = subprocess.run([here.curb, "ps", "--json", str(pid)], env=here.environment, capture_output=True, text=True)
        if "document" in done.stdout or "empty" in done.stdout or "stays" in done.stdout or '"policy_error"' in done.stdout:
            return []
        time.sleep(0.02)
    return [f"curb ps does not tell of the policy that was cut off: {done.stdout}"]


# Namespaces.

FULL = "mount -t tmpfs -o size=4k,mode=700 none @/full; head -c 100000 /dev/zero >@/full/stuff 2>/dev/null || true"
EMPTY_PROC = "mount -t tmpfs -o ro none /proc"


def new_root(proc: bool) -> str:
    """A root with the program and the system's libraries alone: no /tmp, /etc, /dev, /sys, and no /proc unless asked."""
    bound = "mount -t tmpfs none @/root; cd @/root; mkdir -p usr t"
    bound += "; for d in bin sbin lib lib64; do if [ -L /$d ]; then cp -P /$d .; elif [ -d /$d ]; then mkdir $d; mount --rbind /$d $d; fi; done"
    bound += "; mount --rbind /usr usr; mount --bind @/b t; cp @/job.json ."
    return bound + ("; mkdir proc; mount --rbind /proc proc" if proc else "")


def make_root(here: Here) -> None:
    (here.folder / "root").mkdir()
    here.program = Path("/t/program")


IN_ROOT = {"LD_LIBRARY_PATH": "/t", "CURB_LIBRARY": "/t/libcurb.so"}
UNDER_CURB_IN_ROOT = {"LD_PRELOAD": "/t/libcurb.so", "CURB_POLICY": "/job.json"}


# Whole cases.


def run_plainly(here: Here, under_curb: bool, words: tuple[str, ...] = (), **more: object) -> subprocess.CompletedProcess[str]:
    environment = here.environment | (here.under_curb(Case("")) if under_curb else {})
    return subprocess.run(
        [str(here.program), *words],
        **({"env": environment, "capture_output": True, "text": True, "timeout": 90, "stdin": subprocess.DEVNULL} | more),  # type: ignore[call-overload]
    )


def same_with_stderr(stderr: Callable[[], int], also: Callable[[], None] | None = None) -> Callable[[Here], list[str]]:
    """Nobody reads what the program says on stderr, to which curb has a refusal to say."""

    def whole(here: Here) -> list[str]:
        came = []
        for under_curb in (False, True):
            file = stderr()
            try:
                done = run_plainly(
                    here, under_curb, capture_output=False, stdout=subprocess.PIPE, stderr=file, preexec_fn=also
                )
            except subprocess.TimeoutExpired:
                return ["it hangs"]
            finally:
                os.close(file)
            came.append((done.returncode, re.sub("beyond the cap: .*\n", "", done.stdout)))
            if under_curb and "beyond the cap: refused" not in done.stdout:
                return [f"it was not kept within its cap: {done}"]
        return [] if came[0] == came[1] else [f"under curb it is {came[1]}, without {came[0]}"]

    return whole


KEPT: list[int] = []


def full_pipe() -> int:
    """One that nobody reads; its other end stays open."""
    for file in KEPT:
        os.close(file)
    KEPT.clear()
    read, write = os.pipe()
    KEPT.append(read)
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write, True)
    return write


def broken_pipe() -> int:
    read, write = os.pipe()
    os.close(read)
    return write


def broken_socket() -> int:
    mine, its = socket.socketpair()
    mine.close()
    return its.detach()


def default_pipe_signal() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def blocked_pipe_signal() -> None:
    default_pipe_signal()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])


def limited_stderr(here: Here) -> list[str]:
    """stderr is a file that may not grow: SIGXFSZ would end the program."""
    came = []
    for under_curb in (False, True):
        with open(here.folder / "err", "wb") as file:
            done = run_plainly(
                here, under_curb, capture_output=False, stdout=subprocess.PIPE, stderr=file,
                preexec_fn=lambda: [signal.signal(signal.SIGXFSZ, signal.SIG_DFL), limit(resource.RLIMIT_FSIZE, 0)()] and None,
            )  # fmt: skip
        came.append((done.returncode, re.sub("beyond the cap: .*\n", "", done.stdout)))
    return [] if came[0] == came[1] else [f"under curb it is {came[1]}, without {came[0]}"]


def closed(*numbers: int) -> Callable[[Here], list[str]]:
    """Started without these descriptors, with a log of curb's: what curb opens must not come to stand under them."""

    def close_them() -> None:
        for number in numbers:
            os.close(number)

    def whole(here: Here) -> list[str]:
        log_to("@/log")(here)
        came = [run_plainly(here, under_curb, preexec_fn=close_them) for under_curb in (False, True)]
        log = (here.folder / "log").read_text()
        wrong = []
        if came[1].returncode != 0 or came[0].returncode != 0:
            wrong.append(f"it ends with {came[1].returncode}, without curb with {came[0].returncode}")
        if any(line and " curb[" not in line for line in log.splitlines()) or "refused" not in log:
            wrong.append(f"curb's log is {log!r}")
        if came[1].stderr or 1 not in numbers and "refused" not in came[1].stdout:
            wrong.append(f"stderr: {came[1].stderr!r}, stdout: {came[1].stdout!r}")
        return wrong

    return whole


def log_goes_on(here: Here) -> list[str]:
    """What is said after the daemon has closed the log's number is in the log again."""
    text = (here.folder / "log").read_text()
    return [] if "refused" in text else [f"the log is {text!r}"]


def full_stdout(here: Here) -> list[str]:
    """The program stands still in its own write, and goes on when it is read: curb's threads take nothing of it."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    filled = 0
    try:
        while True:
            filled += os.write(write, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write, True)
    environment = here.environment | here.under_curb(Case(""))
    process = subprocess.Popen([str(here.program)], env=environment, stdin=subprocess.DEVNULL, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    text = b""
    while block := os.read(read, 65536):
        text += block
    os.close(read)
    assert process.stderr
    process.stderr.read()
    process.stderr.close()
    good = process.wait(90) == 0 and text[filled:].endswith(b"beyond the cap: refused\nready\n")
    return [] if good else [f"it said {text[filled:]!r} and ended with {process.returncode}"]


def under_tracer(*words: str) -> Callable[[Here], list[str]]:
    def whole(here: Here) -> list[str]:
        require_program(words[0])
        environment = here.environment | here.under_curb(Case(""))
        set_inside = [f"{name}={value}" for name, value in environment.items()]
        try:
            done = subprocess.run(
                [word.replace("@", str(here.folder)) for word in words] + ["env", "-i", *set_inside, str(here.program)],
                capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return ["it hangs"]
        if "ermission" in done.stderr or "not permitted" in done.stderr:
            raise Skip(f"{words[0]} may not trace here")
        said = "beyond the cap: refused\nready\n" in done.stdout and "served beside a release 16\n" in done.stdout
        return [] if done.returncode == 0 and said else [f"{done}"]

    return whole


def empty_argv0(here: Here) -> list[str]:
    here.set_policy(rules=[{"match": {"exe": "program*", "args": "*"}, "gpu": {"*": {"cap": CAP}}}])
    # The kernel gives a program without arguments an empty one; Python refuses to ask for either.
    arguments, variables = ([*(text.encode() for text in texts), None] for texts in ((), (
        f"{name}={value}" for name, value in (here.environment | here.under_curb(Case(""))).items())))  # fmt: skip
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 1)
        os.dup2(write, 2)
        LIBC.execve(
            str(here.program).encode(), (ctypes.c_char_p * len(arguments))(*arguments), (ctypes.c_char_p * len(variables))(*variables)
        )
        os._exit(98)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [] if status == 0 and "beyond the cap: refused" in text else [f"it ended with {status}: {text}"]


def deleted_folder(here: Here) -> list[str]:
    """Its folder is gone, and the policy and the log are named relative to that."""
    gone = here.folder / "gone"
    wrong = []
    for policy, refused in ((str(here.policy), False), ("job.json", True)):
        gone.mkdir()
        environment = here.environment | here.under_curb(Case("")) | {"CURB_POLICY": policy}
        script = f'cd {gone} && rmdir {gone} && exec env -i "$@"'
        words = [*(f"{name}={value}" for name, value in environment.items()), str(here.program)]
        done = subprocess.run(["sh", "-c", script, "sh", *words], capture_output=True, text=True, timeout=90)
        good = ("served 0" in done.stdout or "context 2" in done.stdout) if refused else "served 16" in done.stdout
        if done.returncode != 0 or not good or "beyond the cap: refused" not in done.stdout:
            wrong.append(f"{policy}: {done}")
    return wrong


def odd_library_path(here: Here) -> list[str]:
    odd = here.folder / "höf'\"`;&|\\(*?"
    odd.mkdir()
    shutil.copy(here.library, odd / "libcurb.so")
    environment = here.environment | here.under_curb(Case("")) | {"LD_PRELOAD": str(odd / "libcurb.so")}
    done = run_plainly(here, False, env=environment)
    wrong = [] if done.returncode == 0 and "beyond the cap: refused" in done.stdout else [f"{done}"]
    blank = here.folder / "a b:c"
    blank.mkdir()
    shutil.copy(here.library, blank / "libcurb.so")
    for library, good in ((odd, 0), (blank, 125)):
        words = [here.curb, "run", "--policy", here.policy, "--", here.program]
        done = subprocess.run(
            words, env=here.environment | {"CURB_LIBRARY": str(library / "libcurb.so")}, capture_output=True, text=True
        )
        if done.returncode != good or (good and done.stdout):
            wrong.append(f"curb run with {library}: {done}")
    return wrong


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def clock_backwards(here: Here) -> list[str]:
    """A thread that waits by such a clock may not turn that into a loop, and what is asked of it is done."""
    here.set_policy(trace={"file": f"{here.folder}/trace"}, release={"idle": "1s"})
    environment = here.environment | here.under_curb(Case("")) | {"LD_PRELOAD": f"{here.library}:{here.clock}"}
    process = subprocess.Popen(
        [str(here.program), "stays"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    assert process.stdin and process.stdout and process.stderr
    lines = []
    while (line := process.stdout.readline()) and line != "ready\n":
        lines.append(line)
    before, began = cpu_s(process.pid), time.monotonic()
    time.sleep(0.5)
    used, took = cpu_s(process.pid) - before, time.monotonic() - began
    done = subprocess.run([here.curb, "release", str(process.pid)], env=here.environment, capture_output=True, text=True, timeout=90)
    process.stdin.close()
    status = process.wait(90)
    err = process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    wrong = []
    if status != 0 or "beyond the cap: refused\n" not in lines:
        wrong.append(f"it ended with {status}: {lines} {err}")
    if used > took / 5:
        wrong.append(f"it used {used:.2f} s of CPU in {took:.2f} s of doing nothing")
    if done.returncode != 0:
        wrong.append(f"curb release: {done}")
    return wrong


def locale_cases(here: Here) -> None:
    require_program("localedef")
    (here.folder / "locales").mkdir()
    for name in ("tr_TR",):
        words = ["localedef", "--no-archive", "-i", name, "-f", "UTF-8", str(here.folder / "locales" / f"{name}.UTF-8")]
        if subprocess.run(words, capture_output=True).returncode not in (0, 1):
            raise Skip("localedef has no sources of locales (package locales)")
    growth = {"start": "512MiB", "factor": 1.5}
    here.set_policy(gpu={"*": {"cap": CAP, "growth": growth}}, trace={"file": f"{here.folder}/trace"})


def trace_is_json(here: Here) -> list[str]:
    text = (here.folder / "trace").read_text().rstrip().rstrip(",")
    try:
        events = json.loads(text if text.endswith("]") else text + "]")
    except ValueError as why:
        return [f"the trace cannot be read: {why}"]
    return [] if len(events) > 10 else ["the trace is empty"]


def mode_of_umask(here: Here) -> list[str]:
    """The runtime directory of this user must be of use to his next process, too."""
    folder = here.runtime / "curb"
    bits = folder.stat().st_mode & 0o7777 if folder.exists() else None
    return [] if bits == 0o700 else [f"{folder} has mode {bits:o}" if bits is not None else f"there is no {folder}"]


def odd_umask() -> None:
    os.umask(0o777)


def no_stdin_terminal() -> None:
    os.setsid()


def writable(here: Here) -> None:
    give_to_user(here)


def unprivileged_inotify(here: Here) -> None:
    if subprocess.run(["unshare", "-Ur", "sh", "-c", "echo 0 >/proc/sys/user/max_inotify_instances"], capture_output=True).returncode:
        raise Skip("no user namespace can be made here")


def user_and_rule(here: Here) -> None:
    make_root(here)
    here.set_policy(rules=[{"match": {"user": "nobody-at-all"}, "gpu": {"*": {"cap": "1GiB"}}}])


CASES = [
    Case("a full disk: log and trace", FULL, before=both_full, lines=2),
    Case("a full disk: the runtime directory", "mount -t tmpfs -o nr_inodes=1,mode=700 none @/runtime"),
    Case("a full disk: an edit of the policy that was cut off", meanwhile=full_then_policy, asked=True, lines=4),
    Case("a device that is always full as log", before=log_to("/dev/full"), asked=True),
    Case("a read-only runtime directory", "mount -t tmpfs -o ro none @/runtime"),
    Case("a read-only /tmp", "mount -t tmpfs -o ro none /mnt; mount --rbind @ /mnt || true; mount -o remount,bind,ro / 2>/dev/null || true",
         without=("XDG_RUNTIME_DIR",)),
    Case("a noexec runtime directory", "mount -t tmpfs -o noexec,mode=700 none @/runtime", asked=True),
    Case("no /tmp, no /etc, no /dev: a bare root", new_root(True), before=make_root, through=("chroot", "@/root"),
         environment=IN_ROOT, under_curb=UNDER_CURB_IN_ROOT, without=("XDG_RUNTIME_DIR", "HOME"), asked=None),
    Case("a bare root without /proc", new_root(False), before=make_root, through=("chroot", "@/root"),
         environment=IN_ROOT, under_curb=UNDER_CURB_IN_ROOT, without=("XDG_RUNTIME_DIR",), asked=None),
    Case("a bare root and a rule about a user", new_root(True), before=user_and_rule, through=("chroot", "@/root"),
         environment=IN_ROOT, under_curb=UNDER_CURB_IN_ROOT, asked=None),
    Case("no /proc", EMPTY_PROC, asked=None),
    Case("hidepid", "mount -t proc -o hidepid=2 proc /proc", before=require_root),
    Case("no /dev/shm", "mount -t tmpfs -o ro none /dev/shm", asked=True),
    Case("no cgroups", "if [ -d /sys/fs/cgroup ]; then mount -t tmpfs -o ro none /sys/fs/cgroup; fi", asked=True),
    Case("no HOME, no runtime directory", without=("HOME", "XDG_RUNTIME_DIR"), asked=False),
    Case("HOME and XDG_CONFIG_HOME that are not there", environment={"HOME": "/nonexistent", "XDG_CONFIG_HOME": "none"}, asked=True),
    Case("16 descriptors", prepare=limit(resource.RLIMIT_NOFILE, 16)),
    Case("3 descriptors", program_words=("limit=nofile:3",), refused=True, lines=3, says="Too many open files"),
    Case("little address space", program_words=("limit=as:+24",)),
    Case("no threads", prepare=limit(resource.RLIMIT_NPROC, 1), as_user=True, before=give_to_user, asked=None, lines=1,
         says="no thread"),
    Case("a small stack", prepare=limit(resource.RLIMIT_STACK, 64 << 10), asked=True),
    Case("a stack that threads would inherit, 16 KiB", program_words=("limit=stack:16384",), asked=True),
    Case("an unlimited stack", prepare=limit(resource.RLIMIT_STACK, resource.RLIM_INFINITY), asked=True),
    Case("files that may not grow", prepare=limit(resource.RLIMIT_FSIZE, 0), before=both_full),
    Case("stderr is a file that may not grow", whole=limited_stderr),
    Case("no queued signals", prepare=limit(resource.RLIMIT_SIGPENDING, 0), asked=True),
    Case("no locked memory", prepare=limit(resource.RLIMIT_MEMLOCK, 0), asked=True),
    Case("no core files", prepare=limit(resource.RLIMIT_CORE, 0), asked=True),
    Case("modern system calls that are not there (ENOSYS)", prepare=without_calls(ENOSYS, *MODERN), before=need_filters),
    Case("modern system calls that are refused (EPERM)", prepare=without_calls(EPERM, *(set(MODERN) - {"clone3"})), before=need_filters),
    Case("system calls that end the process, of those that curb never makes", prepare=without_calls(KILL, *NEVER_MADE),
         before=need_filters, asked=True),
    Case("no sockets (EPERM)", prepare=without_calls(EPERM, "socket", "socketpair"), before=need_filters),
    Case("no listening (EPERM)", prepare=without_calls(EPERM, "bind", "listen", "connect"), before=need_filters),
    Case("no inotify", prepare=without_calls(ENOSYS, "inotify_init1", "inotify_add_watch"), before=need_filters, asked=True),
    Case("no table of descriptors of one's own", prepare=without_calls(EPERM, "close_range", "unshare"), before=trace_to("@/trace"), asked=True),
    Case("no names for threads", prepare=without_calls(ENOSYS, "prctl", "readlink", "getcwd"), before=need_filters),
    Case("another's socket directory", before=runtime_folder(anothers)),
    Case("a link in place of the socket directory", before=runtime_folder(link)),
    Case("a socket directory of mode 0666", before=runtime_folder(mode(0o666)), asked=None),
    Case("a socket directory of mode 0777", before=runtime_folder(mode(0o777)), asked=None),
    Case("a file in place of the socket directory", before=runtime_folder(lambda folder: folder.write_text(""))),
    Case("no inotify instance left", through=("unshare", "-Ur", "sh", "-c", 'echo 0 >/proc/sys/user/max_inotify_instances; exec "$@"', "sh"),
         before=unprivileged_inotify),
    Case("a namespace of pids", through=("unshare", "-mpfUr", "--mount-proc", "--"), before=unprivileged_inotify, asked=None),
    Case("an environment of a megabyte", environment={f"BALLAST_{i}": "x" * 100_000 for i in range(10)}, asked=True),
    Case("odd characters in the library's path", whole=odd_library_path),
    Case("a clock that goes backwards", whole=clock_backwards),
    Case("no visible device", environment={"CUDA_VISIBLE_DEVICES": ""}),
    Case("umask 0777", prepare=odd_umask, as_user=True, before=writable, after=mode_of_umask, asked=True),
    Case("a daemon that closes all descriptors and opens its own", before=log_to("@/log"), program_words=("daemon",),
         after=log_goes_on),
    Case("stdin closed", whole=closed(0)),
    Case("stdout closed", whole=closed(1)),
    Case("stderr closed", whole=closed(2)),
    Case("stdin, stdout and stderr closed", whole=closed(0, 1, 2)),
    Case("stdout a full pipe", whole=full_stdout),
    Case("stderr a full pipe that nobody reads", whole=same_with_stderr(full_pipe)),
    Case("stderr a broken pipe, SIGPIPE as it is", whole=same_with_stderr(broken_pipe, default_pipe_signal)),
    Case("stderr a broken pipe, SIGPIPE blocked", whole=same_with_stderr(broken_pipe, blocked_pipe_signal)),
    Case("stderr a broken socket", whole=same_with_stderr(broken_socket, default_pipe_signal)),
    Case("stderr a full device", whole=same_with_stderr(lambda: os.open("/dev/full", os.O_WRONLY))),
    Case("a Turkish locale, whose point is a comma", environment={"LC_ALL": "tr_TR.UTF-8", "LOCPATH": "@/locales"}, program_words=("locale",),
         before=locale_cases, after=trace_is_json, asked=True),

    Case("an empty argv[0]", whole=empty_argv0),
    Case("a folder that was deleted", whole=deleted_folder),
    Case("the policy is a FIFO that nobody writes", before=policy_is(os.mkfifo), refused=True, lines=2, says="not a regular file"),
    Case("the policy is a device", under_curb={"CURB_POLICY": "/dev/zero"}, refused=True, lines=2, says="not a regular file"),
    Case("the policy is a directory", before=policy_is(Path.mkdir), refused=True, lines=2, says="it is a directory"),
    Case("the policy has gigabytes", before=policy_is(sparse_gigabytes), after=starts_at_once, refused=True, lines=2, says="larger than 1 MiB"),
    Case("the policy may not be read", before=unreadable, as_user=True, refused=True, lines=2, says="may not be read"),
    Case("the policy is a link to itself", before=policy_is(lambda path: path.symlink_to(path.name)), refused=True, lines=2, says="circle"),
    Case("the log is a FIFO that nobody reads", before=fifo_log, asked=True),
    Case("the trace is a FIFO that nobody reads", before=fifo_trace, asked=True),
    Case("the log is a directory", before=log_to("@", "warning"), asked=True, says="log.file"),
    Case("under strace", whole=under_tracer("strace", "-f", "-o", "/dev/null")),
    Case("under gdb", whole=under_tracer("gdb", "-q", "-batch", "-ex", "handle SIGUSR1 nostop noprint", "-ex", "run", "--args")),
]  # fmt: skip
