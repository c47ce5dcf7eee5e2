#!/usr/bin/env python3
"""An upgrade under running programs: surroundings_upgrade_test.py BUILD CMAKE

cmake --install replaces libcurb.so while a program has it mapped: that goes on with the old one, the new one comes to
stand there whole and in one moment, and what is started then has it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from surroundings_here import asked_in_time

BUILD, CMAKE = sys.argv[1:3]
PROGRAM = f"{BUILD}/tests/surroundings_program"
IN_CREATE, IN_MODIFY, IN_DELETE, IN_MOVED_TO = 0x100, 0x2, 0x200, 0x80
LIBC = ctypes.CDLL(None, use_errno=True)


def install(prefix: Path) -> None:
    subprocess.run([CMAKE, "--install", BUILD, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)


def mapped(pid: int) -> set[int]:
    """The inodes of libcurb.so in a process."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {int(line.split()[4]) for line in lines if "/libcurb.so" in line}


def events(inotify: int, name: str) -> list[int]:
    """What has become of this name."""
    block, out = os.read(inotify, 1 << 20), []
    while block:
        _, mask, _, length = struct.unpack_from("iIII", block)
        if block[16 : 16 + length].rstrip(b"\0").decode() == name:
            out.append(mask)
        block = block[16 + length :]
    return out


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        prefix, runtime = Path(folder, "prefix"), Path(folder, "runtime")
        runtime.mkdir(mode=0o700)
        install(prefix)
        library = prefix / "lib/curb/libcurb.so"
        assert library.stat().st_mode & 0o777 in (0o755, 0o644)
        assert sorted(path.name for path in library.parent.iterdir()) == ["libcurb.so", "sim"]
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": folder,
            "XDG_RUNTIME_DIR": str(runtime),
            "LD_LIBRARY_PATH": f"{BUILD}/sim",
            "CURB_CAP": "4GiB",
            "CURB_LIBRARY": str(library),
        }
        words = [PROGRAM, "stays"]
        process = subprocess.Popen(
            words,
            env=environment | {"LD_PRELOAD": str(library)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin and process.stdout
        while process.stdout.readline() not in ("ready\n", ""):
            pass
        old = library.stat().st_ino
        assert mapped(process.pid) == {old}

        inotify = LIBC.inotify_init1(os.O_NONBLOCK)
        assert (
            LIBC.inotify_add_watch(
                inotify, str(library.parent).encode(), IN_CREATE | IN_MODIFY | IN_DELETE | IN_MOVED_TO
            )
            > 0
        )
        os.utime(library, (1, 1))  # CMake leaves alone what is as new
        install(prefix)
        seen = events(inotify, "libcurb.so")
        os.close(inotify)
        assert seen == [IN_MOVED_TO], f"it is not put in place by a rename alone: {list(map(hex, seen))}"
        new = library.stat().st_ino
        assert new != old and mapped(process.pid) == {old}

        # The old one serves, also what the new command asks.
        done = asked_in_time([f"{BUILD}/bin/curb", "release", str(process.pid)], (0,), env=environment)
        assert done.returncode == 0, done
        process.stdin.close()
        assert process.wait(60) == 0
        process.stdout.close()
        done = subprocess.run(
            [PROGRAM],
            env=environment | {"LD_PRELOAD": str(library)},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0 and "beyond the cap: refused" in done.stdout, done
    return 0


if __name__ == "__main__":
    sys.exit(main())
