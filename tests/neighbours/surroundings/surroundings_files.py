"""Files, folders and mounts for the cases of surroundings_test.py."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from surroundings_here import CAP, FIRST_USER, Here, Skip, give_to_user, require_program, require_root

Before = Callable[[Here], None]


def runtime_folder(make: Callable[[Path], None]) -> Before:
    return lambda here: make(here.runtime / "curb")


def anothers(folder: Path) -> None:
    require_root()
    folder.mkdir(mode=0o700)
    os.chown(folder, FIRST_USER - 1, FIRST_USER - 1)


def mode(bits: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        folder.mkdir()
        folder.chmod(bits)

    return make


def link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to("elsewhere")


def log_to(path: str, level: str = "info") -> Before:
    return lambda here: here.set_policy(log={"level": level, "file": here.text(path)})


def trace_to(path: str) -> Before:
    return lambda here: here.set_policy(trace={"file": here.text(path)})


def fifo(name: str, then: Before) -> Before:
    def before(here: Here) -> None:
        os.mkfifo(here.folder / name)
        then(here)

    return before


def policy_is(make: Callable[[Path], None]) -> Before:
    def before(here: Here) -> None:
        here.policy.unlink()
        make(here.policy)

    return before


def sparse_gigabytes(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(8 << 30)


def starts_at_once(here: Here) -> list[str]:
    """Every program under curb reads the policy before main; it must not read gigabytes."""
    child = os.fork()
    if child == 0:
        os.execve("/bin/true", ["true"], here.all_under_curb())
    _, _, used = os.wait4(child, 0)
    spent = used.ru_utime + used.ru_stime
    return [] if spent < 0.5 else [f"/bin/true takes {spent:.2f} s of CPU"]


def unreadable(here: Here) -> None:
    give_to_user(here)
    here.policy.chmod(0)


def both_full(here: Here) -> None:
    full = here.folder / "full"
    full.mkdir()
    here.set_policy(log={"level": "info", "file": f"{full}/log"}, trace={"file": f"{full}/trace"})


def full_then_policy(here: Here, pid: int) -> list[str]:
    """Makes an edit that does not reach the disk: the last good policy stays in force."""
    subprocess.run(["sh", "-c", f"cat {here.policy} /dev/zero >/dev/full 2>/dev/null; : >{here.policy}"], check=False)
    for _ in range(2000):
        done = subprocess.run([here.curb, "ps", "--json", str(pid)], env=here.environment, capture_output=True, text=True)
        if f"{here.policy}:1:1: " in done.stdout:
            return []
        time.sleep(0.02)
    return [f"curb ps does not report the truncated policy: {done.stdout}"]


FULL = "mount -t tmpfs -o size=4k,mode=700 none @/full; head -c 100000 /dev/zero >@/full/stuff 2>/dev/null || true"
READ_ONLY = """for mount in / /tmp; do
    if mountpoint -q $mount; then mount -o remount,bind,ro $mount || exit 9; fi
done
if touch /tmp/curb-probe 2>/dev/null; then rm /tmp/curb-probe; exit 9; fi"""
"""Exit status 9: these mounts are impossible here."""
EMPTY_PROC = "mount -t tmpfs -o ro none /proc"


def new_root(proc: bool) -> str:
    """Returns the script for a root with only the program and system libraries: no /tmp, /etc, /dev, /sys; /proc if `proc`."""
    bound = "mount -t tmpfs none @/root; cd @/root; mkdir -p usr t"
    bound += "; for d in bin sbin lib lib64; do if [ -L /$d ]; then cp -P /$d ."
    bound += "; elif [ -d /$d ]; then mkdir $d; mount --rbind /$d $d; fi; done"
    bound += "; mount --rbind /usr usr; mount --bind @/b t; cp @/job.json ."
    return bound + ("; mkdir proc; mount --rbind /proc proc" if proc else "")


def make_root(here: Here) -> None:
    (here.folder / "root").mkdir()
    here.program = Path("/t/program")


def rule_about_a_user(here: Here) -> None:
    make_root(here)
    here.set_policy(rules=[{"match": {"user": "nobody-at-all"}, "gpu": {"*": {"cap": "1GiB"}}}])


def turkish_locale(here: Here) -> None:
    require_program("localedef")
    (here.folder / "locales").mkdir()
    made = here.folder / "locales" / "tr_TR.UTF-8"
    words = ["localedef", "--no-archive", "-i", "tr_TR", "-f", "UTF-8", str(made)]
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
    """The user's next process must be able to use the runtime directory, too."""
    folder = here.runtime / "curb"
    bits = folder.stat().st_mode & 0o7777 if folder.exists() else 0
    return [] if bits == 0o700 else [f"{folder} has mode {bits:o}"]


def odd_umask() -> None:
    os.umask(0o777)


def traced_by_user(here: Here) -> None:
    trace_to("@/trace")(here)
    give_to_user(here)


def unprivileged_inotify(here: Here) -> None:
    words = ["unshare", "-Ur", "sh", "-c", "echo 0 >/proc/sys/user/max_inotify_instances"]
    if subprocess.run(words, capture_output=True).returncode:
        raise Skip("no user namespace can be made here")
