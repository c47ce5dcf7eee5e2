"""A C++ program with the CUDA runtime, linked statically or as a shared library. Starts by LD_PRELOAD, or by `curb run`."""

from __future__ import annotations

from lab import Case, Lab
from releasing import record, release
from row import CAP, CAP_MIB, UNUSED_MIB, Row
from session import Job, Session

_OUT_OF_MEMORY = ["cudaErrorMemoryAllocation"]


def _case(linked: str, by_curb_run: bool = False) -> Case:
    def case(lab: Lab, row: Row) -> None:
        job = lab.job(row.name, CAP)
        argv = lab.compiled("fill/cudart_fill.cu", "-cudart", linked)
        with row.watching((lab.run_by_curb if by_curb_run else lab.capped)(argv, job)) as session:
            _go_through(session, job, row)

    return case


def _go_through(session: Session, job: Job, row: Row) -> None:
    session.expect("warm", 30)
    session.tell("fill")
    for event, how, next_command in (("full", "cudaMalloc", "fill again"), ("full_async", "cudaMallocAsync", "go on")):
        full = session.expect(event, 30)
        row.details[event] = full
        row.error = ", ".join(full["errors"])
        row.expect(full["errors"] == _OUT_OF_MEMORY, f"{how}: unexpected error {row.error}")
        row.expect(full["total_mib"] == CAP_MIB, f"cudaMemGetInfo shows {full['total_mib']} MiB in all, not the cap")
        held = session.held_mib()
        row.expect(held >= CAP_MIB - UNUSED_MIB, f"{how}: refused with only {held:.0f} MiB held, far below the cap")
        session.tell(next_command)
    filled = row.details["full_async"]["filled_mib"]
    idle = session.expect("idle", 30)
    row.expect(idle["correct"], "computes wrongly after the refusal")
    back = release(session, job.log)
    record(row, back)
    row.expect(back.mib >= 0.9 * filled, f"{back.mib:.0f} of {filled} MiB came back")
    session.tell("again")
    done = session.expect("done", 30)
    row.goes_on = idle["correct"] and done["correct"]
    row.expect(done["correct"], "computes wrongly after the release")
    row.expect(done["handled"] == 1, f"its own SIGUSR1 handler ran {done['handled']} times for 1 signal")
    row.add_note(f"its own handler in C ran {done['handled']} times for 1 signal")
    session.finish()


CUDART = {
    "cudart static": _case("static"),
    "cudart shared": _case("shared"),
    "curb run, cudart shared": _case("shared", by_curb_run=True),
}
