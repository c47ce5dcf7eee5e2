#!/usr/bin/env python3
"""The system-wide preload: surroundings_preload_test.py BUILD

curb-preload checks, writes and removes its line of /etc/ld.so.preload, and takes it back if programs fail with it. The test
runs in a mount namespace of its own, with a copy of /etc, and checks that this machine's own file did not change.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "common"))
from skipping import skip  # noqa: E402

BUILD = Path(sys.argv[1]).resolve()
CURB_PRELOAD = Path(__file__).resolve().parents[3] / "cli/curb-preload"
PACKAGING = Path(__file__).resolve().parents[3] / "packaging"
FILE = Path("/etc/ld.so.preload")
LIBRARY = Path("/opt/curb/lib/libcurb.so")


def preload(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CURB_PRELOAD, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, **environment},
    )


def is_in_programs() -> bool:
    return str(LIBRARY) in subprocess.run(["cat", "/proc/self/maps"], capture_output=True, text=True).stdout


def refused(why: str, *words: object) -> None:
    done = preload(*words)
    assert done.returncode == 1 and why in done.stderr, (why, done)
    assert not FILE.exists(), done


def fill(folder: Path) -> None:
    with open(folder / "fill", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC, error


def on_full_disks() -> None:
    """Other libraries' lines stay if the disk is full."""
    others = "/lib/x86_64-linux-gnu/libc.so.6\n"
    temporary = Path("/mnt")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", temporary], check=True)
    fill(temporary)
    FILE.write_text(others)
    done = preload("install", LIBRARY, TMPDIR=str(temporary))
    assert FILE.read_text() == others, (FILE.read_text(), done)
    assert done.returncode == 1 and "cannot be written" in done.stderr, done
    subprocess.run(["umount", temporary], check=True)

    subprocess.run(["mount", "-t", "tmpfs", "none", temporary], check=True)
    subprocess.run(["cp", "-a", "/etc/.", temporary], check=True)
    subprocess.run(["mount", "--move", temporary, "/etc"], check=True)
    FILE.write_text(others + f"{LIBRARY}\n")
    size = sum(1 for _ in Path("/etc").rglob("*")) * 4096 + shutil.disk_usage("/etc").used
    subprocess.run(["mount", "-o", f"remount,size={size}", "/etc"], check=True)
    fill(Path("/etc"))
    done = preload("remove", LIBRARY)
    assert FILE.read_text() == others + f"{LIBRARY}\n", (FILE.read_text(), done)
    assert done.returncode == 1 and "cannot be written" in done.stderr, done
    assert not Path(f"{FILE}.curb-new").exists()
    Path("/etc/fill").unlink()
    assert preload("remove", LIBRARY).returncode == 0 and FILE.read_text() == others
    FILE.unlink()
    subprocess.run(["umount", "-l", "/etc"], check=True)


def removing_packages() -> None:
    """A package that is removed takes its line out of the file; one that is upgraded leaves it there."""
    library, others = "/usr/lib/curb/libcurb.so", "# another's\n/lib/x86_64-linux-gnu/libc.so.6\n"
    tools = LIBRARY.parent / "bin"
    tools.mkdir()
    (tools / "curb-preload").symlink_to(CURB_PRELOAD)
    prerm = (PACKAGING / "debian/curb.prerm").read_text()
    preun = (PACKAGING / "rpm/curb.spec").read_text().split("%preun\n")[1].split("\n%files")[0]

    def run(script: str, what: str) -> int:
        path = f"{tools}:{os.environ['PATH']}"
        # Each of its programs prints the loader's error, since the library is not there.
        return subprocess.run(
            ["sh", "-c", script, "sh", what], env={**os.environ, "PATH": path}, capture_output=True
        ).returncode

    for script, upgrade, remove in ((prerm, "upgrade", "remove"), (preun, "1", "0")):
        FILE.write_text(f"{others}{library}\n")
        assert run(script, upgrade) == 0 and FILE.read_text() == f"{others}{library}\n", FILE.read_text()
        assert run(script, remove) == 0 and FILE.read_text() == others, FILE.read_text()
        assert run(script, remove) == 0 and FILE.read_text() == others, FILE.read_text()
        FILE.write_text(f"/lib/x86_64-linux-gnu/libc.so.6 {library}\n")
        assert run(script, remove) == 1 and library in FILE.read_text(), "the package went, and its line stayed"
        FILE.unlink()
        assert run(script, remove) == 0 and not FILE.exists()


def within() -> None:
    """Runs the cases, in the namespace."""
    shutil.copy(BUILD / "lib/libcurb.so", LIBRARY)
    elsewhere = LIBRARY.parent / "a b.so"
    shutil.copy(BUILD / "lib/libcurb.so", elsewhere)
    refused("cannot carry such a path", "check", elsewhere)
    refused("there is no such file", "check", "/opt/curb/none.so")
    refused("name its absolute path", "check", "libcurb.so")
    refused("has no line", "remove", LIBRARY)
    for path, mode, why in (
        (LIBRARY, 0o775, "is writable by others than root"),
        (LIBRARY, 0o750, "cannot be read by all"),
        (LIBRARY.parent, 0o777, "is writable by others than root"),
        (LIBRARY.parent, 0o700, "cannot be read by all"),
    ):
        path.chmod(mode)
        refused(why, "check", LIBRARY)
        path.chmod(0o755)
    os.chown(LIBRARY, 12345, 0)
    refused("does not belong to root", "install", LIBRARY)
    os.chown(LIBRARY, 0, 0)
    link = LIBRARY.parent / "link.so"
    link.symlink_to(LIBRARY)
    refused("links lead to it", "check", link)
    text = LIBRARY.parent / "text.so"
    text.write_text("no library")
    refused("the loader does not load it", "check", text)

    # If there was no file, install makes one and remove deletes it.
    done = preload("install", LIBRARY)
    assert done.returncode == 0 and "programs of this machine run as without" in done.stdout, done
    assert FILE.read_text() == f"{LIBRARY}\n" and FILE.stat().st_mode & 0o777 == 0o644 and is_in_programs()
    assert preload("install", LIBRARY).returncode == 1
    assert preload("remove", LIBRARY).returncode == 0 and not FILE.exists() and not is_in_programs()

    # Other lines stay, and curb-preload keeps a copy of the old file.
    others = "# another's\n/lib/x86_64-linux-gnu/libc.so.6\n"
    FILE.write_text(others)
    assert preload("install", LIBRARY).returncode == 0 and is_in_programs()
    assert FILE.read_text() == others + f"{LIBRARY}\n"
    assert Path(f"{FILE}.before-curb").read_text() == others
    assert preload("remove", LIBRARY).returncode == 0 and FILE.read_text() == others and not is_in_programs()
    Path(f"{FILE}.before-curb").unlink()

    removing_packages()
    on_full_disks()
    FILE.write_text(others)

    # This library passes the check, but then no program runs: curb-preload takes its line back with the shell's builtins.
    shutil.copy(BUILD / "tests/libsurroundings_harm.so", LIBRARY)
    done = preload("install", LIBRARY)
    assert done.returncode == 1 and "do not run as before with it" in done.stderr, done
    assert FILE.read_text() == others
    # Now it does harm from the start: the check finds it.
    FILE.unlink()
    done = preload("check", LIBRARY)
    assert done.returncode == 1 and not FILE.exists(), done


def main() -> int:
    if os.environ.get("CURB_WITHIN") == "1":
        within()
        return 0
    if os.geteuid() != 0:
        skip("it needs root")
    before = FILE.read_bytes() if FILE.exists() else None
    with tempfile.TemporaryDirectory() as folder:
        if os.stat(folder).st_dev != os.stat("/bin/sh").st_dev:
            skip("temporary files are not on the file system of /bin/sh")
        # The folder stands for /opt, whose own contents are hidden from the test.
        os.chmod(folder, 0o755)
        Path(folder, "opt/curb/lib").mkdir(parents=True)
        script = f"""set -e
            cp -a /etc {folder}/etc
            rm -f {folder}/etc/ld.so.preload
            mount --bind {folder}/etc /etc
            mkdir -p /opt
            mount --bind {folder}/opt /opt
            exec "$@" """
        # Without the variables of a sanitizer or another preload.
        environment = {"PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), "CURB_WITHIN": "1"}
        words = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", sys.executable, *sys.argv]
        if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
            skip("no mount namespace can be made here")
        done = subprocess.run(words, env=environment)
    assert (FILE.read_bytes() if FILE.exists() else None) == before, "this machine's own file was touched"
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
