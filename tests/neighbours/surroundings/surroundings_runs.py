"""Cases of surroundings_test.py that need more than a program in surroundings. Each returns its errors."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from surroundings_files import log_to
from surroundings_here import CAP, LIBC, Here, Skip, asked_in_time, limit, require_program

Whole = Callable[[Here], list[str]]
REFUSED = "beyond the cap: refused"


def kept_to_its_cap(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [] if done.returncode == 0 and REFUSED in done.stdout else [f"{done}"]


def same_with_stderr(stderr: Callable[[], int], also: Callable[[], None] | None = None) -> Whole:
    """Returns a case in which no one can read the program's stderr, where curb reports a refusal."""

    def whole(here: Here) -> list[str]:
        came = []
        for under_curb in (False, True):
            file = stderr()
            try:
                done = here.run(under_curb, capture_output=False, stdout=subprocess.PIPE, stderr=file, preexec_fn=also)
            except subprocess.TimeoutExpired:
                return ["it hangs"]
            finally:
                os.close(file)
            came.append((done.returncode, re.sub("beyond the cap: .*\n", "", done.stdout)))
        if REFUSED not in done.stdout:
            return [f"it was not kept within its cap: {done}"]
        return [] if came[0] == came[1] else [f"under curb it is {came[1]}, without {came[0]}"]

    return whole


def fill(write: int) -> int:
    """Fills a pipe. Returns how many bytes it took."""
    os.set_blocking(write, False)
    filled = 0
    try:
        while True:
            filled += os.write(write, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write, True)
    return filled


KEPT: list[int] = []
"""The reading end of the last full pipe, which has to stay open."""


def full_pipe() -> int:
    while KEPT:
        os.close(KEPT.pop())
    read, write = os.pipe()
    KEPT.append(read)
    fill(write)
    return write


def broken_pipe() -> int:
    read, write = os.pipe()
    os.close(read)
    return write


def broken_socket() -> int:
    mine, its = socket.socketpair()
    mine.close()
    return its.detach()


def a_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def full_device() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def default_pipe_signal() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def blocked_pipe_signal() -> None:
    default_pipe_signal()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])


def files_may_not_grow() -> None:
    """A write to a file ends the program by SIGXFSZ, which Python ignores for itself."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    limit(resource.RLIMIT_FSIZE, 0)()


def closed(*numbers: int) -> Whole:
    """Returns a case that starts without these descriptors, with a log: no file that curb opens may take their numbers."""

    def close_them() -> None:
        for number in numbers:
            os.close(number)

    def whole(here: Here) -> list[str]:
        log_to("@/log")(here)
        bare, capped = (here.run(under_curb, preexec_fn=close_them) for under_curb in (False, True))
        log = (here.folder / "log").read_text()
        wrong = []
        if capped.returncode != 0 or bare.returncode != 0:
            wrong.append(f"it ends with {capped.returncode}, without curb with {bare.returncode}")
        if any(line and " curb[" not in line for line in log.splitlines()) or "refused" not in log:
            wrong.append(f"curb's log is {log!r}")
        if capped.stderr or (1 not in numbers and "refused" not in capped.stdout):
            wrong.append(f"stderr: {capped.stderr!r}, stdout: {capped.stdout!r}")
        return wrong

    return whole


def log_goes_on(here: Here) -> list[str]:
    """After the daemon has closed the log's descriptor, messages reach the log again."""
    text = (here.folder / "log").read_text()
    return [] if "refused" in text else [f"the log is {text!r}"]


def full_stdout(here: Here) -> list[str]:
    """The program blocks in its own write and goes on when the pipe is read: curb's threads do not interfere."""
    read, write = os.pipe()
    filled = fill(write)
    process = subprocess.Popen(
        [here.program], env=here.all_under_curb(), stdin=subprocess.DEVNULL, stdout=write, stderr=subprocess.DEVNULL
    )
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()[filled:]
    good = process.wait(90) == 0 and text.endswith(f"{REFUSED}\nready\n".encode())
    return [] if good else [f"it said {text!r} and ended with {process.returncode}"]


def under_tracer(*words: str) -> Whole:
    def whole(here: Here) -> list[str]:
        require_program(words[0])
        variables = [f"{name}={value}" for name, value in here.all_under_curb().items()]
        command = [*words, "env", "-i", *variables, str(here.program)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return ["it hangs"]
        if "ermission" in done.stderr or "not permitted" in done.stderr:
            raise Skip(f"{words[0]} may not trace here")
        said = f"{REFUSED}\nready\n" in done.stdout and "served beside a release 16\n" in done.stdout
        return [] if done.returncode == 0 and said else [f"{done}"]

    return whole


def empty_argv0(here: Here) -> list[str]:
    """The kernel gives a program without arguments an empty argv[0]. Python's execve accepts neither, so this calls libc's."""
    here.set_policy(rules=[{"match": {"exe": "program*", "args": "*"}, "gpu": {"*": {"cap": CAP}}}])
    variables = [f"{name}={value}".encode() for name, value in here.all_under_curb().items()]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 1)
        os.dup2(write, 2)
        environment = (ctypes.c_char_p * (len(variables) + 1))(*variables, None)
        LIBC.execve(str(here.program).encode(), (ctypes.c_char_p * 1)(None), environment)
        os._exit(98)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [] if status == 0 and REFUSED in text else [f"it ended with {status}: {text}"]


def deleted_folder(here: Here) -> list[str]:
    """The working folder has been deleted. A policy path relative to it cannot be read, so curb refuses everything."""
    gone = here.folder / "gone"
    wrong = []
    for policy, refused in ((str(here.policy), False), ("job.json", True)):
        gone.mkdir()
        environment = here.all_under_curb() | {"CURB_POLICY": policy}
        script = f'cd {gone} && rmdir {gone} && exec env -i "$@"'
        words = [*(f"{name}={value}" for name, value in environment.items()), str(here.program)]
        done = subprocess.run(["sh", "-c", script, "sh", *words], capture_output=True, text=True, timeout=90)
        good = ("served 0" in done.stdout or "context 2" in done.stdout) if refused else "served 16" in done.stdout
        wrong += kept_to_its_cap(done) if good else [f"{policy}: {done}"]
    return wrong


def odd_library_path(here: Here) -> list[str]:
    odd, blank = here.folder / "höf'\"`;&|\\(*?", here.folder / "a b:c"
    for folder in (odd, blank):
        folder.mkdir()
        shutil.copy(here.library, folder)
    wrong = kept_to_its_cap(here.run(True, env=here.all_under_curb() | {"LD_PRELOAD": str(odd / "libcurb.so")}))
    for folder, status in ((odd, 0), (blank, 125)):
        words = [str(word) for word in (here.curb, "run", "--policy", here.policy, "--", here.program)]
        environment = here.environment | {"CURB_LIBRARY": str(folder / "libcurb.so")}
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        if done.returncode != status or (status and done.stdout):
            wrong.append(f"curb run with {folder}: {done}")
    return wrong


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def clock_backwards(here: Here) -> list[str]:
    """A thread that waits by such a clock must not spin, and curb must answer requests."""
    here.set_policy(trace={"file": f"{here.folder}/trace"}, release={"idle": "1s"})
    environment = here.all_under_curb() | {"LD_PRELOAD": f"{here.library}:{here.clock}"}
    with subprocess.Popen(
        [here.program, "stays"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        lines = []
        while (line := process.stdout.readline()) and line != "ready\n":
            lines.append(line)
        before, began = cpu_s(process.pid), time.monotonic()
        time.sleep(0.5)
        used, took = cpu_s(process.pid) - before, time.monotonic() - began
        done = asked_in_time([str(here.curb), "release", str(process.pid)], (0,), env=here.environment)
        process.stdin.close()
        status = process.wait(90)
    wrong = []
    if status != 0 or f"{REFUSED}\n" not in lines:
        wrong.append(f"it ended with {status}: {lines}")
    if used > took / 5:
        wrong.append(f"it used {used:.2f} s of CPU while it was idle for {took:.2f} s")
    return wrong + ([f"curb release: {done}"] if done.returncode != 0 else [])
