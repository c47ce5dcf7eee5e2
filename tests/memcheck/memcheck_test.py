#!/usr/bin/env python3
"""Programs under libcurb.so, and tests of its layers, under Valgrind's memcheck: memcheck_test.py BUILD

Fails if one of them reads or writes memory that is not its own, uses uninitialised memory, or passes it to the system. The
only suppressions are Valgrind's own for libc. Only short programs run, because Valgrind is some twenty times slower. Other
suites judge their output: here the simulated driver does not get all the addresses that it asks for, and refuses some memory.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / folder) for folder in ("common", "matrix")]
import matrix  # noqa: E402
from skipping import skip  # noqa: E402

BUILD = Path(sys.argv[1]).resolve()
TESTS = BUILD / "tests"
LAYERS = ("size_test", "policy_test", "decide_test", "rules_test", "locate_test")
SLOW_LAYERS = ("suspended_test", "trace_test")
"""Only in the nightly run: they take two thirds of the whole time."""
SCENARIOS = (
    "one_refusal_is_said_once",
    "memory_is_charged_where_it_lives",
    "the_drivers_own_errors_come_through_and_the_books_balance",
    "usr1_trims_what_pools_keep",
    "the_process_ends_with_everything_live",
    "a_fork_child_passes_and_the_parent_goes_on",
    "every_way_of_looking_up_leads_to_the_wrapper",
    "mapped_memory_is_held_by_references_and_mappings",
    "arrays_are_charged_as_the_driver_backs_them",
    "a_captured_graph_is_charged_when_it_is_launched",
    "a_stack_is_charged_for_every_resident_thread",
)
FAULTS = {
    "the_drivers_own_errors_come_through_and_the_books_balance":
        "cuMemAlloc_v2:1:999,cuMemFree_v2:1:700,cuMemCreate:1:801,cuMemRelease:1:999,cuMemAllocAsync:1:101",
}  # fmt: skip
"""The calls that the driver fails, by scenario."""
REPORT = 99
"""Valgrind's exit status if it found an error."""


def run(command: list[str], more: dict[str, str]) -> str:
    """Returns the error; empty if there is none."""
    with tempfile.TemporaryDirectory(prefix="curb-memcheck-") as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("CURB_", "LD_"))}
        environment |= {"XDG_RUNTIME_DIR": folder, "HOME": folder} | more
        done = subprocess.run(
            ["valgrind", "-q", f"--error-exitcode={REPORT}", *command],
            env=environment, cwd=folder, capture_output=True, text=True, timeout=240, check=False,
        )
    ended = 0 <= done.returncode < REPORT  # and no signal ended it
    if ended and not re.search(r"^==\d+==", done.stderr, re.MULTILINE):
        return ""
    return f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


def main() -> int:
    if not shutil.which("valgrind"):
        skip("valgrind is not installed (scripts/setup test)")
    capped = {"LD_PRELOAD": str(BUILD / "lib/libcurb.so"), "LD_LIBRARY_PATH": str(BUILD / "sim"), "CURB_CAP": "1GiB", "CURB_SIM_GPUS": "2"}
    work = [([str(TESTS / name)], {}) for name in (*LAYERS, *(SLOW_LAYERS if matrix.NIGHTLY else ()))]
    work += [([str(TESTS / "scenarios"), name], capped | {"CURB_SIM_FAULT": FAULTS.get(name, "")}) for name in SCENARIOS]
    with ThreadPoolExecutor(2) as pool:
        wrong = [fault for fault in pool.map(lambda one: run(*one), work) if fault]
    for fault in wrong:
        print(fault)
    matrix.report("sanitized", len(work) - len(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
