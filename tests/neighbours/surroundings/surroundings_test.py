#!/usr/bin/env python3
"""Hostile surroundings: surroundings_test.py BUILD [NAME...]

In each case a program runs without libcurb.so and under it. It must print the same, end the same, and stay within its cap or
get a clear reason why it cannot, with at most one line of curb's beside the refusal's; it must neither crash nor hang.
curb ps and curb release run for it in the same surroundings. Cases that this machine cannot make are reported as skipped.
NAME: only the cases whose names contain one of these. CURB_VERBOSE=1 shows the programs' output.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2] / "matrix")]
import matrix  # noqa: E402
from surroundings_cases import CASES  # noqa: E402
from surroundings_here import PATIENCE_S, Case, Here, Skip, asked_in_time  # noqa: E402

REFUSAL = re.compile(r"^curb\[\d+\]: refused ", re.MULTILINE)


@dataclass
class Came:
    """The outcome of one run."""

    status: int | None
    """Popen's returncode; None: it hung."""
    out: str = ""
    err: str = ""
    asked: list[str] = field(default_factory=list)
    """Errors in the command's answers."""


def read_to(file: int, into: list[bytes], until: bytes, seen: threading.Event) -> None:
    """Reads to the end of the file. Sets `seen` once `until` has come, or at the end."""
    while block := os.read(file, 65536):
        into.append(block)
        if until in b"".join(into):
            seen.set()
    seen.set()


def ask(case: Case, here: Here, pid: int) -> list[str]:
    """Runs curb ps and curb release for the process. Returns the errors."""
    wrong = []
    for words, good in ((["ps", str(pid)], (0, 1)), (["release", str(pid)], (0,) if case.asked else (0, 1))):
        try:
            done = asked_in_time(
                [*here.wrapped(case, pid), str(here.curb), *words],
                good,
                env=here.environment | {name: here.text(value) for name, value in case.environment.items()},
                preexec_fn=here.prepared(case),
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            wrong.append(f"curb {words[0]} hangs")
            continue
        if done.returncode not in good or len(done.stderr.splitlines()) > 3:
            wrong.append(f"curb {words[0]} ended with {done.returncode}: {done.stderr}")
    return wrong


def run(case: Case, here: Here, under_curb: bool) -> Came:
    environment = here.environment | case.environment
    if under_curb:
        environment |= here.under_curb(case)
    stays = case.asked is not None
    out, err = os.pipe(), os.pipe()
    process = subprocess.Popen(
        [*here.wrapped(case), *here.started(case, environment), *(["stays"] if stays else [])],
        env=here.environment,
        stdin=subprocess.PIPE,
        stdout=out[1],
        stderr=err[1],
        preexec_fn=here.prepared(case),
        cwd=here.folder,
    )
    os.close(out[1])
    os.close(err[1])
    outs: list[bytes] = []
    errs: list[bytes] = []
    ready, nothing = threading.Event(), threading.Event()
    readers = [
        threading.Thread(target=read_to, args=(out[0], outs, b"ready\n", ready), daemon=True),
        threading.Thread(target=read_to, args=(err[0], errs, b"\0never", nothing), daemon=True),
    ]
    for reader in readers:
        reader.start()
    came = Came(None)
    if ready.wait(PATIENCE_S):
        if under_curb and stays and process.poll() is None and case.meanwhile:
            came.asked += case.meanwhile(here, process.pid)
        if under_curb and stays and process.poll() is None:
            came.asked += ask(case, here, process.pid)
    assert process.stdin
    process.stdin.close()
    try:
        came.status = process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for reader in readers:
        reader.join(PATIENCE_S)
    os.close(out[0])
    os.close(err[0])
    came.out, came.err = (b"".join(part).decode(errors="replace") for part in (outs, errs))
    return came


BEYOND = re.compile(r"^beyond the cap: (\w+)\n", re.MULTILINE)


def judged(case: Case, bare: Came, capped: Came) -> list[str]:
    """Returns the errors."""
    wrong = list(capped.asked)
    if bare.status != 0:
        return [f"the case is none: without curb the program ends with {bare.status}: {bare.err}"]
    if capped.status is None:
        return [*wrong, "it hangs"]
    if case.refused:
        if "\nserved 0\n" not in capped.out and "context 2\n" not in capped.out:
            wrong.append("it was not refused")
    else:
        if capped.status != bare.status:
            wrong.append(f"it ends with {capped.status}, without curb with {bare.status}")
        if BEYOND.sub("", capped.out) != BEYOND.sub("", bare.out):
            wrong.append(f"it says {capped.out!r}, without curb {bare.out!r}")
        if BEYOND.findall(bare.out) == ["served"] and BEYOND.findall(capped.out) != ["refused"]:
            wrong.append("it was not kept within its cap")
    lines = [line for line in capped.err.removeprefix(bare.err).splitlines() if not REFUSAL.match(line)]
    if len(lines) > case.lines:
        wrong.append(f"{len(lines)} lines beside the refusal's")
    if case.says and not re.search(case.says, capped.err):
        wrong.append(f"nothing of {case.says!r} on stderr")
    return wrong


def lives_through(case: Case, root: Path, build: Path) -> list[str]:
    with Here(root, build, CASES.index(case)) as here:
        if case.before:
            case.before(here)
        if case.whole:
            return case.whole(here)
        bare = run(case, here, False)
        if bare.status == 9:
            raise Skip("mounts as they are to be cannot be made here")
        capped = run(case, here, True)
        if os.environ.get("CURB_VERBOSE") == "1":
            print(f"    {bare}\n    {capped}")
        wrong = judged(case, bare, capped)
        if case.after:
            wrong += case.after(here)
        return wrong and [*wrong, f"stderr: {capped.err[:2000]}"]


def tried(number: int, root: Path, build: Path) -> tuple[list[str], str, float]:
    """Returns the errors of a case, or why it is skipped, and the seconds that it took."""
    began = time.monotonic()
    try:
        return lives_through(CASES[number], root, build), "", time.monotonic() - began
    except Skip as why:
        return [], str(why), 0


def main() -> int:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    build, names = Path(sys.argv[1]).resolve(), sys.argv[2:]
    numbers = [number for number, case in enumerate(CASES) if not names or any(name in case.name for name in names)]
    failed, lived, skipped = [], 0, 0
    # In processes: a fork beside other threads is unsafe. Four, as a case mostly waits.
    with tempfile.TemporaryDirectory(prefix="curb-surroundings-") as folder, ProcessPoolExecutor(4) as pool:
        root = Path(folder)
        root.chmod(0o755)
        for number, (wrong, why, took) in zip(numbers, pool.map(partial(tried, root=root, build=build), numbers)):
            name = CASES[number].name
            if why:
                print(f"skipped: {name}: {why}", flush=True)
                skipped += 1
                continue
            print(f"{'FAILED' if wrong else 'lived'}: {name} ({took:.2f} s)", *wrong, sep="\n    ", flush=True)
            failed += [name] if wrong else []
            lived += not wrong
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{lived} surroundings, {skipped} skipped, {used.ru_utime + used.ru_stime:.1f} CPU s")
    matrix.report("surroundings", lived)
    if failed:
        print(f"failed: {', '.join(failed)}")
        return 1
    if not names and lived < matrix.figure("surroundings"):
        print("too few could be made here")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
