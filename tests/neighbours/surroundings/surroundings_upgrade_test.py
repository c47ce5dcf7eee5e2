#!/usr/bin/env python3
"""An upgrade under running programs: surroundings_upgrade_test.py BUILD CMAKE

cmake --install replaces libcurb.so while a program has it mapped. The program goes on with the old one, a single rename puts
the new one in place, and programs that start later use the new one.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from surroundings_here import LIBC, asked_in_time

BUILD, CMAKE = sys.argv[1:3]
PROGRAM = f"{BUILD}/tests/surroundings_program"
IN_CREATE, IN_MODIFY, IN_DELETE, IN_MOVED_TO = 0x100, 0x2, 0x200, 0x80


def install(prefix: Path) -> None:
    command = [CMAKE, "--install", BUILD, "--component", "Unspecified", "--prefix", prefix]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def mapped(pid: int) -> set[int]:
    """The inodes of libcurb.so in a process."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {int(line.split()[4]) for line in lines if "/libcurb.so" in line}


def events(inotify: int, name: str) -> list[int]:
    """The events of this name."""
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
        under_curb = environment | {"LD_PRELOAD": str(library)}
        pipe = subprocess.PIPE
        with subprocess.Popen([PROGRAM, "stays"], env=under_curb, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdin and process.stdout
            while process.stdout.readline() not in ("ready\n", ""):
                pass
            old = library.stat().st_ino
            assert mapped(process.pid) == {old}

            inotify = LIBC.inotify_init1(os.O_NONBLOCK)
            wanted = IN_CREATE | IN_MODIFY | IN_DELETE | IN_MOVED_TO
            assert LIBC.inotify_add_watch(inotify, str(library.parent).encode(), wanted) > 0
            os.utime(library, (1, 1))  # CMake skips a file whose time has not changed
            install(prefix)
            seen = events(inotify, "libcurb.so")
            os.close(inotify)
            assert seen == [IN_MOVED_TO], f"not only a rename puts it in place: {list(map(hex, seen))}"
            new = library.stat().st_ino
            assert new != old and mapped(process.pid) == {old}

            # The old library answers the new command.
            done = asked_in_time([f"{BUILD}/bin/curb", "release", str(process.pid)], (0,), env=environment)
            assert done.returncode == 0, done
            process.stdin.close()
            assert process.wait(60) == 0
        done = subprocess.run([PROGRAM], env=under_curb, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0 and "beyond the cap: refused" in done.stdout, done
    return 0


if __name__ == "__main__":
    sys.exit(main())
