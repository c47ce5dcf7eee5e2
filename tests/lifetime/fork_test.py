#!/usr/bin/env python3
"""Children: fork_test.py BUILD

A program whose 8 threads allocate forks, spawns and clones children in every way, during releases, with a trace and a log.
Each child must act, print and end as without curb, and not hang; the parent's books must be right afterwards. Then come
children that are the first to use CUDA, daemons, pid namespaces, and multiprocessing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from lifetime import finish, outcome, started

import matrix
from simulated import CONTEXT, Machine, within
from skipping import skipped

BUILD = Path(sys.argv[1]).resolve()
PROGRAM, DAEMON = BUILD / "tests/fork_program", BUILD / "tests/daemon_program"
COUNT = matrix.figure("forks")
PYTHON = [sys.executable, "-I", str(Path(__file__).resolve().parent / "fork_python.py")]


def policy(machine: Machine) -> dict[str, object]:
    return {
        "gpu": {"*": {"cap": "1GiB", "cache": {"max": "32MiB"}}},
        "log": {"level": "info", "file": str(machine.folder / "log-%p")},
        "trace": {"file": str(machine.folder / "trace-%p")},
    }


def children(machine: Machine, environment: dict[str, str], words: list[str]) -> tuple[subprocess.Popen[bytes], list[bytes]]:
    process = started([PROGRAM, *words], environment, cwd=machine.folder)
    assert process.stdout
    line = process.stdout.readline().split()
    if not line:
        raise AssertionError(f"{words}: {finish(process, 'the parent')}")
    return process, line


def books_become_right(machine: Machine, pid: int) -> None:
    """Waits until the books of the only process on a GPU are the driver's: its last release may still run."""
    seen = []

    def are_right() -> bool:
        done = machine.curb("ps", str(pid), "--json")
        assert done.returncode == 0, done.stderr
        books = next(use["books"] for use in json.loads(done.stdout)["gpus"][0]["uses"] if use["pid"] == pid)
        used = machine.used()
        seen[:] = [books, used]
        return bool(books["held"] == used == CONTEXT + books["cached"])

    assert within(are_right), f"the parent's books after its children, and the driver's: {seen}"


def awake(machine: Machine) -> int:
    process, line = children(machine, machine.bare, ["45", "1"])
    assert line == [b"45", str(CONTEXT).encode()], line
    assert finish(process, "the parent without curb", b"") == (0, b"", b"")
    process, line = children(machine, machine.under_curb(policy(machine)), [str(COUNT), "1"])
    assert line[0] == str(COUNT).encode(), line
    books_become_right(machine, process.pid)
    assert finish(process, "the parent", b"") == (0, b"", b"")
    assert not machine.sockets(), machine.sockets()
    left = {int(path.name.removeprefix("trace-")) for path in machine.folder.glob("trace-*")}
    assert left == {process.pid}, f"children have written traces, too: {left}"
    return COUNT


def asleep(machine: Machine) -> int:
    count = max(40, COUNT // 25)
    process, line = children(machine, machine.under_curb(policy(machine)), ["asleep", str(count)])
    assert line == [str(count).encode()], line
    assert finish(process, "the parent without CUDA", b"") == (0, b"", b"")
    assert machine.used() == 0
    return count


def runs(pid: int) -> bool:
    """True if it runs. A zombie does not: the process that adopts a daemon may wait for it late."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0] not in "ZX" or fields[17] != "1"  # its first thread may be gone before the others
    except OSError:
        return False


def daemons(machine: Machine) -> int:
    count = 10
    for number in range(count):
        when = ("before", "after")[number % 2]
        for environment in (machine.bare, machine.under_curb({"gpu": {"*": {"cap": "2GiB"}}})):
            file = machine.folder / "daemon"
            file.unlink(missing_ok=True)
            assert outcome([DAEMON, when, file], environment, "the parent of a daemon") == (0, b"", b"")
            assert within(file.exists), f"{when}: there is no daemon"
            text = file.read_text()
            pid = int(text.split()[1])
            assert within(lambda: not runs(pid)), f"{when}: the daemon does not end"
            assert re.fullmatch(rf"pid \d+ result {3 if when == 'before' else 0} errno after fork 77\n", text), f"{when}: it has in its file: {text!r}"
    for _ in range(count):
        status, out, _ = outcome([DAEMON, "stays", ""], machine.under_curb({}), "a program that closes all descriptors")
        assert (status, out) == (77, b""), f"errno after fork is {status} in a child of a program that closed all descriptors"
    return 4 * count


IN_NAMESPACE = """
import ctypes, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
assert os.getpid() == 1 and cuda.cuInit(0) == 0
folder = os.environ["XDG_RUNTIME_DIR"] + "/curb"
deadline = time.monotonic() + 60
while not (os.path.isdir(folder) and [name for name in os.listdir(folder) if name.endswith(".sock")]):
    assert time.monotonic() < deadline, "no socket"
    time.sleep(0.005)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000000) == 0  # CLONE_NEWPID
begin = time.monotonic()
child = os.fork()
if child == 0:
    assert os.getpid() == 1
    libc.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(len([name for name in os.listdir(folder) if name.startswith("1-") and name.endswith(".sock")]))
sys.stdout.flush()
"""


def namespaces(machine: Machine) -> int:
    """A child with the pid of its parent, 1, leaves the parent's socket alone."""
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or not unshare:
        skipped("pid namespaces: only root can make them (unshare --pid)")
        return 0
    command = [unshare, "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-I", "-c", IN_NAMESPACE]
    status, out, err = outcome(command, machine.under_curb(policy(machine)), "a program in a pid namespace")
    if err.startswith(b"unshare: "):  # not allowed, or in a chroot, whose root is no mount point
        skipped(f"pid namespaces: {err.decode().strip()}")
        return 0
    assert (status, out) == (0, b"1\n"), (status, out, err)
    return 1


def multiprocessing(machine: Machine) -> int:
    count = max(4, COUNT // 250)
    bare, curbed = (
        outcome([*PYTHON, str(count)], environment, "multiprocessing")
        for environment in (machine.bare, machine.under_curb(policy(machine)))
    )
    assert bare[0] == 0 and curbed == bare, (bare, curbed)
    return 3 * (count + 2)


def main() -> None:
    counted = 0
    for what in (awake, asleep, daemons, namespaces, multiprocessing):
        with Machine(BUILD) as machine:
            begin = time.monotonic()
            count = what(machine)
            if count > 0:  # else no process has begun the machine's books
                books = machine.books()[0]
                assert books["used"] == 0, books
        print(f"{what.__name__}: {count} children in {time.monotonic() - begin:.1f} s", flush=True)
        counted += count
    matrix.report("forks", counted)


main()
