"""One cap for all processes of a job. Together they never hold more, and their losses are those of a run without curb."""

from __future__ import annotations

import sys

from cases.frameworks.training import judge_losses
from lab import PROGRAMS, Case, Lab
from measuring.watch import MIB
from row import Row

_CAP_MIB = 8192
_RANKS, _STEPS, _RANK_MIB = 4, 40, 2048
_WORKERS, _BATCHES, _WORKER_MIB = 4, 60, 2048


def ranks(number: int, mib: int, backend: str) -> list[str]:
    """Returns the command of a torchrun with so many ranks of job_ranks.py, each of which leaves `mib` of each GPU in its cache."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}"]
    return [*torchrun, str(PROGRAMS / "training/job_ranks.py"), str(_STEPS), str(mib), backend]


def _loader() -> list[str]:
    return [sys.executable, str(PROGRAMS / "training/job_loader.py"), *map(str, (_WORKERS, _BATCHES, _WORKER_MIB))]


def job_case(argv: list[str], ends_itself: bool) -> Case:
    def case(lab: Lab, row: Row) -> None:
        lab.need("torch")
        lab.built("bin/curb")
        with lab.bare(argv, f"{row.name} bare") as session:
            bare = session.expect("trained", 180)
            session.finish() if ends_itself else session.end()
            alone_mib = session.watch.peak / MIB
        # If the workers need more at one moment than the cap allows, one of them waits.
        job = lab.job(row.name, "100%", {"wait": "60s"}, job={"cap": f"{_CAP_MIB}MiB"})
        with row.watching(lab.run_by_curb(argv, job), _CAP_MIB) as session:
            capped = session.expect("trained", 180)
            session.finish() if ends_itself else session.end()
            processes = len(session.watch.peak_of)
        row.goes_on = True
        row.expect(alone_mib > _CAP_MIB, f"without curb it held {alone_mib:,.0f} MiB, less than the cap: nothing was tested")
        row.expect(bare["losses"] == capped["losses"], "the results of the processes differ")
        same = judge_losses(row, [{"losses": run["losses"][0]} for run in (bare, capped)])
        row.details = {"bare_peak_mib": alone_mib, "processes": processes}
        row.add_note(
            f"{processes} processes held {row.peak_mib:,.0f} MiB together at most, {alone_mib:,.0f} without curb; losses {same}"
        )

    return case


JOB: dict[str, Case] = {
    "job, torchrun": job_case(ranks(_RANKS, _RANK_MIB, "gloo"), ends_itself=True),
    "job, DataLoader": job_case(_loader(), ends_itself=False),
}
