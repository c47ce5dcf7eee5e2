"""The cases of surroundings_test.py that are more than a program in surroundings."""

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
from surroundings_here import asked_in_time, CAP, Case, Here, LIBC, Skip, limit, require_program
from surroundings_files import log_to

# Whole cases.


def run_plainly(
    here: Here, under_curb: bool, words: tuple[str, ...] = (), **more: object
) -> subprocess.CompletedProcess[str]:
    environment = here.environment | (here.under_curb(Case("")) if under_curb else {})
    usual = {"env": environment, "capture_output": True, "text": True, "timeout": 90, "stdin": subprocess.DEVNULL}
    done: subprocess.CompletedProcess[str] = subprocess.run([str(here.program), *words], **(usual | more))  # type: ignore[call-overload]
    return done


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


def a_file() -> int:
    """Of no name."""
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def default_pipe_signal() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def blocked_pipe_signal() -> None:
    default_pipe_signal()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])


def files_may_not_grow() -> None:
    """SIGXFSZ would end the program."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    limit(resource.RLIMIT_FSIZE, 0)()


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
    process = subprocess.Popen(
        [str(here.program)], env=environment, stdin=subprocess.DEVNULL, stdout=write, stderr=subprocess.PIPE
    )
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
            str(here.program).encode(),
            (ctypes.c_char_p * len(arguments))(*arguments),
            (ctypes.c_char_p * len(variables))(*variables),
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
        words = [str(word) for word in (here.curb, "run", "--policy", here.policy, "--", here.program)]
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
        [str(here.program), "stays"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin and process.stdout and process.stderr
    lines = []
    while (line := process.stdout.readline()) and line != "ready\n":
        lines.append(line)
    before, began = cpu_s(process.pid), time.monotonic()
    time.sleep(0.5)
    used, took = cpu_s(process.pid) - before, time.monotonic() - began
    done = asked_in_time([str(here.curb), "release", str(process.pid)], (0,), env=here.environment)
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
