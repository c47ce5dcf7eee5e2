#!/usr/bin/env python3
"""curb on a real GPU: every framework at the cap, growth, steering, releases, live edits, signals, and what it all costs.

Runs the cases of `CASES` in order, judges each, prints a table, and writes it as Markdown and as JSON. One failing case
never stops the others. Exit status: 0 all passed (or no GPU), 1 a case failed, 77 no GPU with --strict.
"""

from __future__ import annotations

import sys
import time

import report
from cases.beyond import BEYOND
from cases.cache import CACHE
from cases.capture import capture_case, other_ends, told_threshold
from cases.control import handler_case, live_edit
from cases.cudart import cudart_case
from cases.driver import conformance, contract, contract_under_curb
from cases.fill import FILLS, fill_case
from cases.growth import full_device, growth_staircase, keep_free
from cases.matrix import MATRIX
from cases.paths import paths
from cases.release import RELEASE
from cases.see import SEE
from cases.steer import STEER
from cases.suspend import SUSPEND
from cases.tensorflow import TENSORFLOW
from cases.training import training, training_released
from cases.two_gpus import TWO_GPUS
from lab import Case, Lab, Unavailable
from machine import describe
from row import Row
from session import ProgramFailed
from starting import chosen, lab_for, parser_of

CASES: dict[str, Case] = {
    **{name: fill_case(fill) for name, fill in FILLS.items()},
    "cudart static": cudart_case("static"),
    "cudart shared": cudart_case("shared"),
    "curb run, cudart shared": cudart_case("shared", by_curb_run=True),
    "capture native": capture_case(),
    "capture cudaMallocAsync": capture_case("backend:cudaMallocAsync"),
    "captures that end otherwise": other_ends,
    "the threshold that is told": told_threshold,
    "live edit": live_edit,
    **{
        f"own handler: {kind}, {moment} CUDA": handler_case(kind, moment)
        for kind in ("signal", "faulthandler")
        for moment in ("before", "after")
    },
    "training": training,
    "training, SIGUSR1 every 100 ms": training_released,
    "growth staircase": growth_staircase,
    "keep_free, two jobs": keep_free,
    "full device, waited for": full_device,
    **STEER,
    **RELEASE,
    **SUSPEND,
    **SEE,
    **CACHE,
    "contract suite on the real driver": contract,
    "contract suite under curb": contract_under_curb,
    "conformance": conformance,
    "paths": paths,
    **BEYOND,
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
        row.verdict, row.note = "skipped", str(why)
    except ProgramFailed as failure:
        row.goes_on = False
        row.expect(False, str(failure))
    except Exception as error:  # a mistake in one case must not cost the others' results
        row.expect(False, f"{type(error).__name__}: {error}")
    row.seconds = round(time.monotonic() - start, 1)
    return row


def main() -> int:
    parser = parser_of("gpu-test", __doc__, "case")
    parser.epilog = "`gpu-test paths` runs the table of paths to memory alone, under other preloads too; see its --help."
    parser.add_argument("--name", default="gpu", help="results are called NAME-DATE-GPU (default gpu)")
    parser.add_argument("--quick", action="store_true", help="shorter captures, one pair of training runs")
    options = parser.parse_args()
    names = chosen(CASES, options.only, "case")
    if options.list:
        print("\n".join(names))
        return 0
    with lab_for(options, names, options.quick) as lab:
        machine = describe(lab.device)
        rows = []
        for name in names:
            row = run_case(name, lab)
            rows.append(row)
            print(f"{row.verdict:8}{row.seconds:6.1f} s  {name}", *row.wrong, sep="\n    ! " if row.wrong else "", flush=True)
            # After each: a run that is cut short has what it has.
            written = report.write(report.Result(machine, rows), options.out, options.name)
    print("\n" + report.table(rows))
    print(*(f"written: {path}" for path in written), sep="\n")
    return 1 if any(row.verdict == "FAIL" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
