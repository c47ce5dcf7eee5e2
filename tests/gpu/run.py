#!/usr/bin/env python3
"""Tests curb on a real GPU: frameworks at the cap, growth, steering, releases, suspends, naps, and what they cost.

Runs the cases of `CASES` in order, judges each, prints a table, and writes it as Markdown and as JSON. A failing case does not
stop the others. Exit status: 0 all passed (or no GPU), 1 a case failed, 77 no GPU with --strict.

Cases that need no framework also run on the simulated driver, to try a change of this folder:
LD_LIBRARY_PATH=$PWD/build/sim CURB_SIM_STATE=$(mktemp -u) CURB_SIM_GPUS=2 scripts/gpu-test --out /tmp --only keep_free "two GPUs" contract
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

import report
from cases.cache import CACHE
from cases.capture import CAPTURE
from cases.driver.cudart import CUDART
from cases.driver.driver import DRIVER
from cases.fill import FILL_CASES
from cases.frameworks.steer import STEER
from cases.frameworks.tensorflow import TENSORFLOW
from cases.frameworks.training import TRAINING
from cases.growth import GROWTH
from cases.job import JOB
from cases.matrix import MATRIX
from cases.moves import MOVES
from cases.nap import NAP
from cases.paths import PATH_CASE
from cases.release import RELEASE
from cases.see import SEE
from cases.suspend import SUSPEND
from cases.turns import TURNS
from cases.two_gpus import TWO_GPUS
from lab import Case, Lab
from machine import describe, differences
from row import Row
from session import ProgramFailed, Unavailable
from starting import chosen, lab_for, parser_of

CASES: dict[str, Case] = {
    **FILL_CASES,
    **CUDART,
    **CAPTURE,
    **TRAINING,
    **GROWTH,
    **STEER,
    **RELEASE,
    **SUSPEND,
    **NAP,
    **MOVES,
    **TURNS,
    **JOB,
    **SEE,
    **CACHE,
    **DRIVER,
    **PATH_CASE,
    **TWO_GPUS,
    **TENSORFLOW,
    **MATRIX,
}


def run_case(name: str, lab: Lab) -> Row:
    start = time.monotonic()
    row = Row(name)
    try:
        CASES[name](lab, row)
    except Unavailable as why:
        row.add_note(str(why))
        if not row.wrong:  # a failure before stays one
            row.verdict = "skipped"
    except ProgramFailed as failure:
        row.goes_on = False
        row.expect(False, str(failure))
    except Exception as error:
        row.expect(False, f"{type(error).__name__}: {error}")
    row.seconds = round(time.monotonic() - start, 1)
    return row


def earlier_result(options: argparse.Namespace, machine: dict[str, str]) -> report.Result:
    """Returns the result that --resume continues; an empty one without --resume. Exits if that run was of another machine,
    library or package."""
    found = report.read(options.resume, options.name) if options.resume else None
    if found is None:
        return report.Result(machine, [])
    if text := differences(found.machine, machine):
        sys.exit(f"gpu-test: the run in {options.resume} is of another machine or build ({text}); start a new one: --out DIR")
    return found


def stop(*_: object) -> None:
    """Ends the case under way and its programs, as Ctrl-C does. The results of the cases before are written."""
    sys.exit("gpu-test: stopped; --resume DIR goes on")


def main() -> int:
    signal.signal(signal.SIGTERM, stop)
    parser = parser_of("gpu-test", __doc__, "case")
    parser.epilog = "`gpu-test paths` runs only the table of paths to memory, also under other preloads; see its --help."
    parser.add_argument("--name", default="gpu", help="result files are named NAME-DATE-GPU (default gpu)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs, with less memory; not all times are judged")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="continue the run of that name in DIR: the cases that are missing, were skipped or failed")
    options = parser.parse_args()
    names = chosen(CASES, options.only, "case")
    if options.list:
        print("\n".join(names))
        return 0
    with lab_for(options, quick=options.quick) as lab:
        before = earlier_result(options, describe(lab.device, lab.library))
        options.out, machine = options.resume or options.out, before.machine
        rows = {row.name: row for row in before.rows}
        done = {row.name for row in before.rows if row.verdict not in ("skipped", "FAIL")}
        lab.names = [name for name in names if name not in done]
        written = []
        for name in lab.names:
            row = run_case(name, lab)
            if name in rows and rows[name].wrong:
                row.add_note(f"failed in an earlier run: {rows[name].wrong[0].splitlines()[0]}")
            rows[name] = row
            print(f"{row.verdict:8}{row.seconds:6.1f} s  {name}", *row.wrong, sep="\n    ! " if row.wrong else "", flush=True)
            # After each case, so that an interrupted run keeps its results.
            written = report.write(report.Result(machine, list(rows.values())), options.out, options.name)
    print("\n" + report.table(list(rows.values())))
    print(*(f"written: {path}" for path in written), sep="\n")
    return 1 if any(row.verdict == "FAIL" for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
