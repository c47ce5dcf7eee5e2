#!/usr/bin/env python3
"""Programs of this machine under libcurb.so: programs_test.py BUILD

Runs every program of /usr/bin and /usr/sbin with --version and with --help, and shells, interpreters, package tools and
others with a little work: twice bare, once with libcurb.so preloaded and a cap. Output, errors and exit status must be the
same. If the two bare runs differ, numbers are masked; if they still differ, the command is left out and counted.

The commands run in namespaces of their own, without a network, on read-only file systems, as the user nobody. Without
namespaces, programs that change the machine are left out.
Only a sample runs unless CURB_NIGHTLY=1; CURB_PROGRAMS_SEED repeats one, CURB_PROGRAMS=NAME,... runs only these.
"""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "matrix"))
import matrix  # noqa: E402
from command_list import OTHERS, STOPPED, UNSAFE, Command  # noqa: E402

SEED = int(os.environ.get("CURB_PROGRAMS_SEED", str(time.time_ns() % 1_000_000)))
SAMPLE = 100
"""Number of programs. Each runs six times."""
BARE_S, PRELOADED_S = 5.0, 120.0
MORE = 6
"""Further bare runs if only the preloaded run differs."""
NOBODY = 65534
LARGEST_OUTPUT = 4 << 20
INSIDE = "CURB_PROGRAMS_INSIDE"


class Outcome(NamedTuple):
    status: int
    out: bytes
    err: bytes

    def masked(self) -> Outcome:
        """Returns the outcome without numbers: pids, times, addresses, sizes."""
        def mask(text: bytes) -> bytes:
            return re.sub(rb"0x[0-9a-f]+|[0-9a-f]{8,}|\d+", b"N", re.sub(rb" +", b" ", text))

        return Outcome(self.status, mask(self.out), mask(self.err))

    def less(self, lines: str) -> Outcome:
        """Returns the outcome without these lines, the others sorted."""
        def rest(text: bytes) -> bytes:
            return b"".join(sorted(re.sub(lines.encode(), b"", text, flags=re.MULTILINE).splitlines(True)))

        return Outcome(self.status, rest(self.out), rest(self.err))


class Place:
    """The folder in which the commands run."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        self.library = Path(shutil.copy(library, folder / "libcurb.so"))  # the user nobody can read this copy
        self.library.chmod(0o755)

    def run(self, command: Command, folder: Path, preload: str) -> Outcome | None:
        """Returns None if it does not end in time."""
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "home").mkdir(parents=True)
        environment = {"PATH": "/usr/bin:/usr/sbin:/bin:/sbin", "TERM": "dumb", "LC_ALL": "C", "TZ": "UTC",
                       "PERL_HASH_SEED": "0", "PYTHONHASHSEED": "0"}
        environment |= dict.fromkeys(("HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"), str(folder / "home"))
        environment |= {"CURB_CAP": "1GiB"}
        if preload:
            environment["LD_PRELOAD"] = preload
        # To files: RLIMIT_FSIZE ends a program that writes for ever.
        with open(folder / "out", "w+b") as out, open(folder / "err", "w+b") as err:
            process = subprocess.Popen(command.words, env=environment, cwd=folder / "home", stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=err, start_new_session=True)
            try:
                status = process.wait(PRELOADED_S if preload else BARE_S)
            except subprocess.TimeoutExpired:
                status = None
            try:
                os.killpg(process.pid, signal.SIGKILL)  # processes that it left running
            except ProcessLookupError:
                pass
            process.wait()
            out.seek(0)
            err.seek(0)
            return None if status is None else Outcome(status, out.read(), err.read())

    def compare(self, number: int, command: Command) -> tuple[str, str]:
        """Returns how it compares ("same", "masked", "wrong", or why it is left out) and the error."""
        folder = self.folder / str(number)
        try:
            if (first := self.run(command, folder, "")) is None or (other := self.run(command, folder, "")) is None:
                return "does not end by itself", ""
            curb = self.run(command, folder, str(self.library))
            if curb is None:
                return "wrong", f"does not end in {PRELOADED_S} s"
            for kind in ("same", "masked"):
                runs = [self.comparable(command, run, kind) for run in (first, curb, other)]
                if runs[0] == runs[1]:
                    return kind, ""
                if runs[2] != runs[0]:
                    continue
                # Some programs choose one of a few orders, and may have chosen the same one twice.
                if any(self.run(command, folder, "") != first for _ in range(MORE)):
                    return "is not the same twice", ""
                return "wrong", f"bare {runs[0]}\nunder libcurb.so {runs[1]}"
            return "is not the same twice", ""
        except OSError as error:
            return f"cannot be run: {error.strerror}", ""
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def comparable(command: Command, run: Outcome, kind: str) -> Outcome:
        if command.without:
            run = run.less(command.without)
        return run.masked() if kind == "masked" or command.masked else run


def programs() -> list[Path]:
    names = ("/usr/bin", "/usr/sbin", "/bin", "/sbin")
    folders = sorted({Path(name).resolve() for name in names if Path(name).exists()})
    return [path for folder in folders for path in sorted(folder.iterdir())
            if path.is_file() and os.access(path, os.X_OK)]


def commands(sandboxed: bool) -> list[Command]:
    wanted = [name for name in os.environ.get("CURB_PROGRAMS", "").split(",") if name]
    refused = STOPPED | ({} if sandboxed else UNSAFE)
    found = programs()
    if wanted:
        found = [path for path in found if path.name in wanted]
    elif not matrix.NIGHTLY and len(found) > SAMPLE:
        found = sorted(random.Random(SEED).sample(found, SAMPLE))
    left = [path.name for path in found if any(re.fullmatch(pattern, path.name) for pattern in refused)]
    print(f"{len(found)} programs, CURB_PROGRAMS_SEED={SEED}; never run: {' '.join(left) or 'none of them'}")
    run = [path for path in found if path.name not in left]
    out = [Command([str(path), option]) for path in run for option in ("--version", "--help")]
    return out if wanted else out + [command for command in OTHERS if shutil.which(command.words[0])]


def read_only() -> None:
    """Makes all of this mount namespace but WORK read-only, as far as the kernel permits."""
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    work = os.environ[INSIDE]
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755,exec", "tmpfs", work], check=True)
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in points:
        if point != work:
            subprocess.run(["mount", "-o", "remount,bind,ro", point], check=False, capture_output=True)
    if os.statvfs("/").f_flag & os.ST_RDONLY == 0:
        raise SystemExit("programs_test: / cannot be made read-only in this namespace")
    os.chown(work, NOBODY if REAL_ROOT else 0, NOBODY if REAL_ROOT else 0)


REAL_ROOT = os.environ.get("CURB_PROGRAMS_ROOT") == "1"


def inside() -> int:
    """Runs the commands; in the namespaces, if there are any."""
    library, work = Path(sys.argv[1]), Path(os.environ[INSIDE])
    sandboxed = os.environ.get("CURB_PROGRAMS_SANDBOXED") == "1"
    if sandboxed:
        read_only()
    place = Place(work, library)
    if sandboxed and REAL_ROOT:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_OUTPUT, LARGEST_OUTPUT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    counts: dict[str, list[str]] = {}
    wrong = 0
    with ThreadPoolExecutor(3) as pool:
        todo = commands(sandboxed)
        for command, (kind, why) in zip(todo, pool.map(place.compare, range(len(todo)), todo)):
            counts.setdefault(kind, []).append(" ".join(command.words))
            if why:
                wrong += 1
                print(f"{' '.join(command.words)}: {why}", file=sys.stderr, flush=True)
    for kind, names in sorted(counts.items()):
        print(f"{len(names)} {kind}" + ("" if kind in ("same", "masked") else ": " + ", ".join(names)))
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{own.ru_utime + own.ru_stime:.1f} s of CPU")
    compared = len(counts.get("same", [])) + len(counts.get("masked", []))
    print(f"compared: {compared}")  # main() reports it: the folder of the reports is read-only here
    return 1 if wrong else 0


def main() -> int:
    if INSIDE in os.environ:
        return inside()
    library = Path(sys.argv[1]).resolve() / "lib/libcurb.so"
    root = os.geteuid() == 0
    namespaces = ["unshare", *([] if root else ["--user", "--map-root-user"]), "--mount", "--pid", "--fork", "--net",
                  "--ipc", "--uts", "--mount-proc", "--kill-child"]
    works = shutil.which("unshare") is not None
    works = works and subprocess.run([*namespaces, "true"], check=False, capture_output=True).returncode == 0
    with tempfile.TemporaryDirectory(prefix="curb-programs-", ignore_cleanup_errors=True) as work:
        environment = os.environ | {INSIDE: work, "CURB_PROGRAMS_SEED": str(SEED)}
        environment |= {"CURB_PROGRAMS_SANDBOXED": str(int(works)), "CURB_PROGRAMS_ROOT": str(int(root))}
        if not works:
            print("skipped: programs that could change the machine, since no namespaces can be had here")
        command = [*(namespaces if works else []), sys.executable, __file__, str(library)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        compared = 0
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if line.startswith("compared: "):
                compared = int(line.split()[1])
        status = process.wait()
    matrix.report("commands", compared)
    return status


if __name__ == "__main__":
    sys.exit(main())
