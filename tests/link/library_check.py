"""What the built libcurb.so exports, needs and weighs, read from the file itself.

usage: library_check.py LIBCURB TABLE.txt SIM_LIBCUDA [--release]

TABLE.txt is entry_points.def, preprocessed to one line a row: `wrap NAME`, `call NAME`, `nvml NAME` or `libc NAME`.
--release adds the checks that only an optimised build without sanitizers can pass.
"""

import platform
import re
import subprocess
import sys
from pathlib import Path

ALLOWED = {"libc.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
           # up to glibc 2.33 these are separate
           "libdl.so.2", "libpthread.so.0"}
LARGEST_BYTES = 1_300_000  # that every program maps; names for debuggers, which nobody maps, come on top

# What is built on Debian 12 or Ubuntu 22.04 runs on every system with glibc 2.34, and that is what is distributed. Newer
# systems put newer symbols in (since glibc 2.38 its C23 strtol) and have a libstdc++ with more thread-local storage: what
# is built there is for there.
BUILT_ON_GLIBC = tuple(map(int, platform.libc_ver()[1].split(".")))
FOR_DISTRIBUTION = BUILT_ON_GLIBC <= (2, 36)
NEWEST_GLIBC = (2, 34) if FOR_DISTRIBUTION else BUILT_ON_GLIBC
LARGEST_TLS_BYTES = 64 if FOR_DISTRIBUTION else 128

failures: list[str] = []
checks = 0


def check(holds: bool, otherwise: str) -> None:
    global checks
    checks += 1
    if not holds:
        failures.append(otherwise)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def exported(library: Path) -> set[str]:
    rows = (line.split() for line in run("nm", "-D", "--defined-only", str(library)).splitlines())
    return {row[2].split("@")[0] for row in rows if len(row) == 3}


def main() -> int:
    library, table, simulated = (Path(argument) for argument in sys.argv[1:4])
    rows = [line.split() for line in table.read_text().splitlines() if line.startswith(("wrap ", "call ", "nvml ", "libc "))]
    ours = {name for kind, name in rows if kind != "call"}
    drivers = {name for kind, name in rows if kind in ("wrap", "call")}

    exports = exported(library)
    check(exports == ours, f"exports differ from entry_points.def: {sorted(exports ^ ours)}")
    lacking = drivers - exported(simulated)
    check(not lacking, f"the simulated driver lacks {sorted(lacking)}")

    dynamic = run("readelf", "-dW", str(library))
    check("BIND_NOW" in dynamic or re.search(r"FLAGS_1.*NOW", dynamic) is not None, "not linked with -z now")
    headers = run("readelf", "-lW", str(library))
    check("GNU_RELRO" in headers, "not linked with -z relro")
    tls = re.search(r"^\s+TLS\s+\S+\s+\S+\s+\S+\s+\S+\s+(0x[0-9a-f]+)", headers, re.M)
    check(tls is None or int(tls[1], 16) <= LARGEST_TLS_BYTES, f"thread-local storage of {tls and tls[1]} bytes")

    if "--release" in sys.argv:
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
        check(needed <= ALLOWED, f"needs {sorted(needed - ALLOWED)}")
        symbols = run("nm", "-D", str(library))
        versions = {tuple(map(int, v.split("."))) for v in re.findall(r"@GLIBC_([0-9.]+)", symbols)}
        check(max(versions) <= NEWEST_GLIBC, f"needs glibc {max(versions)}")
        check(not re.search(r"GLIBCXX|CXXABI", symbols), "needs a libstdc++")
        check(" u " not in symbols, "exports unique symbols, which keep a library from being unloaded")
        # Type, offset, virtual and physical address, size in the file
        size = sum(int(mapped, 16) for mapped in re.findall(r"^\s+LOAD(?:\s+\S+){3}\s+(0x[0-9a-f]+)", headers, re.M))
        check(size <= LARGEST_BYTES, f"{size} bytes, more than {LARGEST_BYTES}")

    for failure in failures:
        print(f"{library.name}: {failure}", file=sys.stderr)
    print(f"{checks - len(failures)} of {checks} link checks hold")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
