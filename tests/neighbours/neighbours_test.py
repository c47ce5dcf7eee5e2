#!/usr/bin/env python3
"""libcurb.so beside other preloads, allocators and libraries: neighbours_test.py BUILD LIBASAN [NEIGHBOUR]...

Each neighbour is in LD_PRELOAD with libcurb.so, in both orders, in programs on the simulated driver that allocate in several
threads, release on a signal, fork, and end with live memory. Each program behaves as without the neighbour: its exit status
is 0, its books equal the driver's, it writes nothing to stdout, and leaves nothing on the device. The neighbour's own output
proves that it was in effect. NEIGHBOUR: only these run.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "matrix"))
import matrix  # noqa: E402

BUILD, ASAN = (Path(word).resolve() for word in sys.argv[1:3])
LIBRARY = BUILD / "lib/libcurb.so"
ONLY = set(sys.argv[3:])
OURS, PLUGINS = BUILD / "tests" / "neighbours", BUILD / "tests" / "plugins"
SYSTEM = [Path(folder) for folder in (f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64", "/usr/lib")]
PATIENCE_S = 120.0
EXPECTED = re.compile(r": refused |: the program ignores SIGUSR1, ")
"""The lines that curb logs in the scenarios."""

SCENARIOS = (
    "threads_never_take_more_than_the_cap_together",
    "stream_ordered_memory_stops_at_the_cap",
    "usr1_trims_what_pools_keep",
    "a_fork_child_passes_and_the_parent_goes_on",
    "what_a_program_starts_finds_what_it_would_without_curb",
    "nvml_tells_the_same_as_cuda",
    "the_process_ends_with_everything_live",
)
HUNDRED = "allocates_a_hundred_times"
LOOKUPS = "every_way_of_looking_up_leads_to_the_wrapper"


class Neighbour(NamedTuple):
    name: str
    libraries: tuple[Path | None, ...]
    """For LD_PRELOAD; None: it is not installed."""
    proof: str
    """A regular expression of its own output, on stderr or in the mark file, after the scenario `works`."""
    environment: dict[str, str] = {}
    works: str = "works_beside_it"
    proof_behind: str | None = None
    """The same with libcurb.so before it, if that differs."""
    works_behind: str = ""
    last: tuple[str, ...] = (*SCENARIOS, LOOKUPS)
    """Scenarios with libcurb.so behind it."""
    first: tuple[str, ...] = (*SCENARIOS, LOOKUPS)
    """Scenarios with libcurb.so before it."""
    package: str = ""


def installed(*names: str) -> Path | None:
    return next((folder / name for name in names for folder in SYSTEM if (folder / name).exists()), None)


def ours(name: str) -> Path:
    return OURS / f"libneighbour_{name}.so"


def neighbours(folder: Path) -> list[Neighbour]:
    (folder / "other").mkdir()
    other = Path(shutil.copy(LIBRARY, folder / "other" / "libcurb.so"))
    return [
        Neighbour("jemalloc", (installed("libjemalloc.so.2"),), "Begin jemalloc statistics",
                  {"MALLOC_CONF": "stats_print:true"}, package="libjemalloc2"),
        Neighbour("mimalloc", (installed("libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so.2.0"),), "heap stats:",
                  {"MIMALLOC_SHOW_STATS": "1"}, package="libmimalloc3, or libmimalloc2.0"),
        Neighbour("tcmalloc", (installed("libtcmalloc_minimal.so.4"),), "MALLOC: +[0-9]+ ", {"MALLOCSTATS": "1"},
                  package="libtcmalloc-minimal4"),
        Neighbour("faketime", (installed("faketime/libfaketimeMT.so.1"),), "", {"FAKETIME": "@2020-01-01 00:00:00"},
                  works="time_is_another", package="libfaketime"),
        Neighbour("eatmydata", (installed("libeatmydata.so"),), "", works="nothing_is_synchronised",
                  package="libeatmydata1"),
        Neighbour("spdlog and fmt", (installed(*(f"libspdlog.so.1.{minor}" for minor in (15, 12, 10, 9))),), ""),
        # With whole stacks, a fork child can wait for ever for a lock of the runtime's store of stacks, without curb too.
        Neighbour("AddressSanitizer", (ASAN if ASAN.exists() else None,), "AddressSanitizer Init done",
                  {"ASAN_OPTIONS": "verify_asan_link_order=0:verbosity=1:malloc_context_size=1"}),
        # Before libcurb.so these two find glibc's dlsym and bypass libcurb.so's.
        Neighbour("dlsym by RTLD_NEXT", (ours("dlsym_by_next"),), "dlsym_by_next [1-9]", last=SCENARIOS),
        Neighbour("dlsym of libc", (ours("dlsym_of_libc"),), "dlsym_of_libc [1-9]", last=SCENARIOS),
        Neighbour("handlers", (ours("sets_handlers"),), "handlers [1-9]"),
        Neighbour("locks at fork", (ours("locks_at_fork"),), "taken [1-9]"),
        Neighbour("its own spdlog", (ours("logs_by_spdlog"),), "logs_by_spdlog 2"),
        Neighbour("gone at the end", (ours("gone_at_end"),), "looks [0-9]", works="starts_and_ends"),
        # A program that opens libcuda bypasses it. Behind libcurb.so it is not called: curb looks symbols up in libcuda.
        Neighbour("shim by symbols", (ours("counts_by_symbol"),), "allocated 50\nfreed 50\n", works=HUNDRED,
                  proof_behind="allocated 0\nfreed 0\n", last=SCENARIOS),
        # Before libcurb.so it calls glibc's dlsym on libcuda and bypasses libcurb.so, which then sees no allocation to cap.
        # Behind it, it is not called for the driver's functions: libcurb.so returns its own.
        Neighbour("shim by dlsym", (ours("counts_by_dlsym"),), "allocated 100\nfreed 100\n",
                  proof_behind="allocated 0\nfreed 0\n", works="allocates_past_us",
                  works_behind=HUNDRED, last=(), first=SCENARIOS),
        Neighbour("foreign definitions", (ours("foreign_curbs"),), ""),
        Neighbour("another libcurb.so", (other,), ""),
    ]


class Test:
    def __init__(self, folder: Path) -> None:
        self.folder, self.lock, self.numbers = folder, threading.Lock(), itertools.count()
        self.wrong: list[str] = []
        self.combinations = self.runs = 0

    def run(self, what: str, command: list[str], environment: dict[str, str], proof: str) -> str:
        """Runs a program on a simulated machine of its own. Returns the error; empty if there is none."""
        with self.lock:
            folder = self.folder / str(next(self.numbers))
            self.runs += 1
        folder.mkdir(mode=0o700)
        state, mark = folder / "state", folder / "mark"
        env = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(BUILD / "sim"), "CURB_SIM_STATE": str(state),
               "NEIGHBOUR_MARK": str(mark), **dict.fromkeys(("HOME", "XDG_RUNTIME_DIR", "TMPDIR"), str(folder)),
               **environment}
        process = subprocess.Popen(command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its children too
            out, err = process.communicate()
            return f"{what}: does not end: {err[-2000:]}"
        said = err + (mark.read_text() if mark.exists() else "")
        about = [line for line in err.splitlines() if line.startswith("curb[") and not EXPECTED.search(line)]
        if process.returncode != 0 or out or about:
            return f"{what}: exit status {process.returncode}, stdout {out!r}\n{said[-3000:]}"
        if proof and not re.search(proof, said):
            return f"{what}: the neighbour is not in effect: {proof!r} is not in:\n{said[-2000:]}"
        if state.exists():
            books = subprocess.run([BUILD / "bin" / "curb-sim-books", state], capture_output=True, check=True).stdout
            left = [process for device in json.loads(books)["devices"] for process in device["processes"]]
            if left:
                return f"{what}: is left on the device: {left}"
        shutil.rmtree(folder, ignore_errors=True)
        return ""

    def expect(self, answer: str) -> None:
        """Records and prints an error; nothing if it is empty."""
        if answer:
            self.wrong.append(answer)
            print(answer, file=sys.stderr, flush=True)

    def beside(self, neighbour: Neighbour, pool: ThreadPoolExecutor) -> None:
        if None in neighbour.libraries:
            print(f"skipped: {neighbour.name}: {neighbour.package or 'it'} is not installed (scripts/setup test)")
            return
        theirs = [str(library) for library in neighbour.libraries]
        beside, scenarios = str(BUILD / "tests" / "neighbour_scenarios"), str(BUILD / "tests" / "scenarios")
        alone = neighbour.environment | {"LD_PRELOAD": ":".join(theirs), "NEIGHBOUR_LIBRARY": theirs[0]}
        if neighbour.works == "works_beside_it" and neighbour.name != "another libcurb.so":
            self.expect(self.run(f"{neighbour.name} alone", [beside, "works_without_curb"], alone, neighbour.proof))
        for last in (True, False):
            order = [*theirs, str(LIBRARY)] if last else [str(LIBRARY), *theirs]
            proof = neighbour.proof if last or neighbour.proof_behind is None else neighbour.proof_behind
            environment = alone | {"CURB_CAP": "1GiB", "LD_PRELOAD": ":".join(order)}
            what = f"{neighbour.name}, libcurb.so {'last' if last else 'first'}: "
            works = neighbour.works if last or not neighbour.works_behind else neighbour.works_behind
            runs = [(works, [beside, works], proof)]
            runs += [(name, [scenarios, name], "") for name in (neighbour.last if last else neighbour.first)]
            for answer in pool.map(lambda run: self.run(what + run[0], run[1], environment, run[2]), runs):
                self.expect(answer)
            self.combinations += 1

    def host(self, what: str, program: str, scenario: str, environment: dict[str, str]) -> None:
        """Runs a program that is a neighbour itself, or opens one."""
        under_curb = {"LD_PRELOAD": str(LIBRARY), "CURB_CAP": "1GiB", **environment}
        self.expect(self.run(what, [str(BUILD / "tests" / program), scenario], under_curb, ""))
        self.combinations += 1

    def foreign_runtime(self) -> None:
        """Runs a C program in which another library defines every name of libstdc++: libcurb.so still steers it by a policy."""
        policy = self.folder / "steer.json"
        policy.write_text('{ "version": 1, "frameworks": { "env": { "STEERED": "by curb" } } }')
        for order in itertools.permutations((str(ours("foreign_all")), str(LIBRARY))):
            environment = {"LD_PRELOAD": ":".join(order), "CURB_POLICY": str(policy)}
            with self.lock:
                self.runs += 1
            done = subprocess.run(["/usr/bin/env"], env=environment, capture_output=True, text=True,
                                  timeout=PATIENCE_S, check=False)
            steered = sorted([f"{name}={value}" for name, value in environment.items()] + ["STEERED=by curb"])
            right = done.returncode == 0 and sorted(done.stdout.splitlines()) == steered and not done.stderr
            self.expect("" if right else f"foreign libstdc++, {environment}: {done}")
            self.combinations += 1


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="curb-neighbours-") as temporary, ThreadPoolExecutor(3) as pool:
        test = Test(Path(temporary))
        for neighbour in neighbours(Path(temporary)):
            if not ONLY or neighbour.name in ONLY:
                test.beside(neighbour, pool)
        if not ONLY:
            test.host("operator new is the host's", "throwing_new_scenarios", "operator_new_is_the_hosts", {})
            for plugin, scenario in ((ours("foreign_curbs"), "other_definitions_are_everywhere"),
                                     (ours("logs_by_spdlog"), "other_definitions_are_everywhere"),
                                     (PLUGINS / "libplugin_bound.so", "a_plugin_binds_past_us"),
                                     (OURS / "libplugin_symbolic.so", "a_plugin_is_bound_to_itself")):
                test.host(plugin.name, "neighbour_scenarios", scenario, {"NEIGHBOUR_LIBRARY": str(plugin)})
            test.foreign_runtime()
    print(f"{test.combinations} combinations, {test.runs} runs")
    matrix.report("neighbours", test.combinations)
    return 1 if test.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
