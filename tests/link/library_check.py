"""Checks what the built libcurb.so exports, needs and weighs, by reading the file itself.

usage: library_check.py BUILD TABLE.txt [--release]

TABLE.txt is entry_points.def and functions.def, preprocessed: `wrap NAME`, `thunk NAME`, `call NAME`,
`nvml NAME` or `libc NAME`.
--release adds the checks that only an optimised build without sanitizers can pass.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "matrix"))
import matrix  # noqa: E402

# Without libgcc_s, which curb loads when it becomes active: shim/host/unwinder.hpp.
ALLOWED = {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
           # up to glibc 2.33 these are separate
           "libdl.so.2", "libpthread.so.0"}
LARGEST_BYTES = 1_500_000  # mapped by each program; names for debuggers, which are not mapped, come on top
LARGEST_PAGE = 0x10000  # of the systems that glibc runs on

# The distributed library is built on Debian 12 or Ubuntu 22.04 and runs on every system with glibc 2.34. A build on a
# newer system has newer symbols (since glibc 2.38 its C23 strtol) and a libstdc++ with more thread-local storage: it is
# only for such systems.
BUILT_ON_GLIBC = tuple(map(int, platform.libc_ver()[1].split(".")))
FOR_DISTRIBUTION = BUILT_ON_GLIBC <= (2, 36)
NEWEST_GLIBC = (2, 34) if FOR_DISTRIBUTION else BUILT_ON_GLIBC
LARGEST_TLS_BYTES = 96 if FOR_DISTRIBUTION else 128

# Weak references of crtbegin.o and crti.o in every shared library, which are null if nothing defines them.
TOOLCHAINS_WEAK = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__cxa_finalize", "__gmon_start__"}
# crtbegin.o's, and those of libstdc++.a, whose sources end in .cc; ours end in .cpp.
TOOLCHAINS_CONSTRUCTOR = re.compile(r"frame_dummy|__do_global_dtors_aux|_GLOBAL__sub_[ID]_.*\.cc")
# Functions that end the program, write to its stdout or change settings of the whole process. Without exit: the worker calls
# it where glibc would if the process had no threads of curb's (shim/threads/last_thread.cpp).
NEVER_CALLED = {
    "_exit", "quick_exit", "atexit", "system", "popen", "signal", "alarm", "setitimer", "chdir", "umask",
    "putenv", "unsetenv", "clearenv", "setlocale", "srand", "rand", "stdout", "printf", "vprintf", "puts",
    "putchar", "__printf_chk", "__vprintf_chk", "dup2", "prctl", "setrlimit", "mlockall", "fork", "vfork", "wait",
    "waitpid",
}


class Symbol(NamedTuple):
    address: int
    type: str
    bind: str
    visibility: str
    section: str
    name: str
    """Without its version."""
    version: str


failures: list[str] = []
checks = 0


def check(holds: bool, otherwise: str) -> None:
    global checks
    checks += 1
    if not holds:
        failures.append(otherwise)


def run(*command: str) -> str:
    environment = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def symbols(library: Path, which: str) -> list[Symbol]:
    rows = re.findall(r"^ *\d+: ([0-9a-f]+) +\S+ +(\w+) +(\w+) +(\w+) +(?:\[.*?\] +)?(\w+) +(\S+)",
                      run("readelf", which, "-W", str(library)), re.MULTILINE)
    return [Symbol(int(row[0], 16), *row[1:5], *row[5].replace("@@", "@").partition("@")[::2]) for row in rows]


def exported(library: Path) -> set[str]:
    return {symbol.name for symbol in symbols(library, "--dyn-syms") if symbol.section not in ("UND", "ABS")}


def functions_of(library: Path, section: str) -> list[str]:
    """Returns the functions that the loader calls from an array, by the relocations that fill it."""
    sections, relocations = run("readelf", "-SW", str(library)), run("readelf", "-rW", str(library))
    where = re.search(rf" {re.escape(section)} +\w+ +([0-9a-f]+) [0-9a-f]+ ([0-9a-f]+)", sections)
    if where is None:
        return []
    begin, size = (int(number, 16) for number in where.groups())
    names = {symbol.address: symbol.name for symbol in symbols(library, "--syms") if symbol.type == "FUNC"}
    filled = re.findall(r"^([0-9a-f]+) +[0-9a-f]+ +R_\w+_RELATIVE +([0-9a-f]+)$", relocations, re.MULTILINE)
    return [names.get(int(to, 16), to) for at, to in filled if begin <= int(at, 16) < begin + size]


def exports(library: Path, table: Path, simulated: Path) -> None:
    rows = re.findall(r"\b(wrap|thunk|call|nvml|libc) (\w+)", table.read_text())
    ours = {name for kind, name in rows if kind != "call"}
    drivers = {name for kind, name in rows if kind in ("wrap", "call")}
    found = [symbol for symbol in symbols(library, "--dyn-syms") if symbol.section not in ("UND", "ABS")]
    names = {symbol.name for symbol in found}
    check(names == ours, f"exports differ from the tables: {sorted(names ^ ours)}")
    lacking = drivers - exported(simulated)
    check(not lacking, f"the simulated driver lacks {sorted(lacking)}")
    plain = ("FUNC", "GLOBAL", "DEFAULT")
    odd = [symbol.name for symbol in found if (symbol.type, symbol.bind, symbol.visibility) != plain]
    check(not odd, f"exports that are not plain functions: {odd}")
    # An unversioned definition answers a reference of any version: dlsym's of glibc 2.2.5 and of 2.34 alike.
    check("VERDEF" not in run("readelf", "-dW", str(library)), "exports have versions")


def loading(dynamic: str, headers: str, library: Path) -> None:
    """Checks how the loader takes the library into a process."""
    check("BIND_NOW" in dynamic or re.search(r"FLAGS_1.*NOW", dynamic) is not None, "not linked with -z now")
    check("SYMBOLIC" in dynamic, "not linked with -Bsymbolic: another library may stand in for what is ours")
    check("TEXTREL" not in dynamic, "has text relocations")
    check(not re.search(r"R(UN)?PATH", dynamic), "names folders to look for libraries in")
    check(re.search(r"SONAME.*\[libcurb\.so\]", dynamic) is not None, "its SONAME is not libcurb.so")
    check("PREINIT_ARRAY" not in dynamic, "has constructors that run before others'")
    check("INTERP" not in headers, "can be run as a program")
    check(re.search(r"GNU_STACK\s.*\sRW\s", headers) is not None, "asks for an executable stack")
    check(not re.search(r"LOAD\s.*\sRWE\s", headers), "has memory that is both writable and executable")
    pages = {int(page, 16) for page in re.findall(r"^\s+LOAD\s.*(0x[0-9a-f]+)$", headers, re.MULTILINE)}
    check(max(pages) <= LARGEST_PAGE, f"segments are aligned to {max(pages)} bytes")
    notes = run("readelf", "-nW", str(library))
    check(re.search(r"Build ID: [0-9a-f]{16,}", notes) is not None, "has no build-id")


def relocations(headers: str, library: Path) -> None:
    check("GNU_RELRO" in headers, "not linked with -z relro")
    number = re.findall(r"^  ([A-Z_]+) +0x", headers, re.MULTILINE).index("GNU_RELRO") if "GNU_RELRO" in headers else -1
    covered = re.search(rf"^ +{number:02} +(.*)$", headers, re.MULTILINE)
    lacking = {".init_array", ".fini_array", ".data.rel.ro", ".dynamic", ".got"}
    lacking -= set(covered[1].split() if covered else ())
    check(not lacking, f"can be written to after loading: {sorted(lacking)}")
    entries = run("readelf", "-rW", str(library))
    check("IRELATIV" not in entries, "has functions that are chosen while it is loaded, before others are relocated")
    check("COPY" not in entries, "has copy relocations")


def threads(headers: str, library: Path) -> None:
    size = re.search(r"^\s+TLS\s+\S+\s+\S+\s+\S+\s+\S+\s+(0x[0-9a-f]+)", headers, re.MULTILINE)
    check(size is None or int(size[1], 16) <= LARGEST_TLS_BYTES, f"thread-local storage of {size and size[1]} bytes")
    # A preload gets static thread-local storage at the start. Opened later, it takes it from a small surplus, which the
    # program's own libraries may need. So it may have one pointer: that of shim/base/readers.hpp, without which each read of
    # the policy would call the loader.
    static = re.findall(r"TPOFF|TPREL", run("readelf", "-rW", str(library)))
    check(len(static) <= 1, f"needs static thread-local storage for {len(static)} variables")


def references(library: Path) -> None:
    """Checks what the library takes from others."""
    undefined = [symbol for symbol in symbols(library, "--dyn-syms") if symbol.section == "UND" and symbol.name]
    weak = {symbol.name for symbol in undefined if symbol.bind == "WEAK"}
    check(weak <= TOOLCHAINS_WEAK, f"takes what the host happens to have: {sorted(weak - TOOLCHAINS_WEAK)}")
    loose = {symbol.name for symbol in undefined if not symbol.version and symbol.bind != "WEAK"}
    check(not loose, f"references without a version, which any library may answer: {sorted(loose)}")
    banned = {symbol.name for symbol in undefined} & NEVER_CALLED
    check(not banned, f"refers to {sorted(banned)}")
    versions = {tuple(map(int, symbol.version.split()[0].removeprefix("GLIBC_").split(".")))
                for symbol in undefined if symbol.version.startswith("GLIBC_2")}
    check(max(versions) <= NEWEST_GLIBC, f"needs glibc {max(versions)}")
    check(not any(re.match("GLIBCXX|CXXABI", symbol.version) for symbol in undefined), "needs a libstdc++")
    unique = [symbol.name for symbol in symbols(library, "--dyn-syms") if symbol.bind == "UNIQUE"]
    check(not unique, f"exports unique symbols, which keep a library from being unloaded: {unique}")


def constructors(library: Path) -> None:
    """Checks that curb has one constructor before main, and one destructor after it."""
    for section, only in ((".init_array", "startup.*at_load"), (".fini_array", "trace.*at_end")):
        names = functions_of(library, section)
        ours = [name for name in names if not TOOLCHAINS_CONSTRUCTOR.fullmatch(name)]
        check(len(ours) == 1 and re.search(only, ours[0]) is not None, f"{section} has {names}")


def size(headers: str) -> None:
    # Type, offset, virtual and physical address, size in the file
    mapped = sum(int(part, 16) for part in re.findall(r"^\s+LOAD(?:\s+\S+){3}\s+(0x[0-9a-f]+)", headers, re.MULTILINE))
    check(mapped <= LARGEST_BYTES, f"{mapped} bytes, more than {LARGEST_BYTES}")


def main() -> int:
    build, table = (Path(argument) for argument in sys.argv[1:3])
    library, simulated = build / "lib/libcurb.so", build / "sim/libcuda.so.1"
    for file in (library, simulated, table):
        if not file.exists():
            sys.exit(f"{file} is missing: build everything first (cmake --build {build})")
    dynamic = run("readelf", "-dW", str(library))
    headers = run("readelf", "-lW", str(library))
    exports(library, table, simulated)
    loading(dynamic, headers, library)
    relocations(headers, library)
    threads(headers, library)
    if "--release" in sys.argv:
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
        check(needed <= ALLOWED, f"needs {sorted(needed - ALLOWED)}")
        references(library)
        constructors(library)
        size(headers)

    for failure in failures:
        print(f"{library.name}: {failure}", file=sys.stderr)
    print(f"{checks - len(failures)} of {checks} link checks hold")
    matrix.report("link_checks", checks - len(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
