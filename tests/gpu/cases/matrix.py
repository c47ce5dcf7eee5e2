"""Programs do the same under curb as without it: rows 1, 6, 7, 8 and 9 of tests/matrix/rows.def with PyTorch, and failing calls
of the real driver. Every program runs bare, under curb without a cap, and under a cap far above its need. Its events and its
exit status must be the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cases.driver import driver_faults, memcheck
from lab import Case, Lab
from row import Row
from session import Unavailable
from together import BARE, ROOM, Judge, Outcomes, Plan, Run, Together, same_as_bare


@dataclass(frozen=True)
class Program:
    """`script`: a file of programs/. `more`: other arguments with which it runs under curb, and which give the same events.
    `times`: each run is repeated so often. `environment`: returns further variables for a run with that folder."""

    script: str
    arguments: tuple[str, ...] = ()
    more: tuple[tuple[str, ...], ...] = ()
    limit_s: float = 90.0
    expected_s: float = 20.0
    times: int = 1
    environment: Callable[[Lab, Path], dict[str, str]] = lambda lab, folder: {}

    def plan(self, lab: Lab, name: str) -> list[Run]:
        lab.need("torch")
        runs = []
        for again in ([], *([str(number)] for number in range(2, self.times + 1))):
            runs.append(self._run(lab, name, " ".join([BARE, *again]), self.arguments, under_curb=False))
            for arguments in (self.arguments, *self.more):
                for kind, cap in (("observed", None), ("capped", ROOM)):
                    runs.append(self._run(lab, name, " ".join([kind, *arguments, *again]), arguments, cap=cap))
        return runs

    def _run(
        self, lab: Lab, case: str, name: str, arguments: tuple[str, ...], *, under_curb: bool = True, cap: str | None = None
    ) -> Run:
        folder = lab.folder_of(f"{case} {name}")
        # With a cache of its own each run compiles its kernels.
        own = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        own |= {"TORCHINDUCTOR_COMPILE_THREADS": "4"} | self.environment(lab, folder)
        job = lab.job(f"{case} {name}", cap) if under_curb else None
        env = lab.capped_environment(job, own) if job else lab.environment(own)
        argv = lab.python(self.script, *arguments)
        return Run(name, argv, env, folder, self.limit_s, self.expected_s, job)

    def judge(self, row: Row, outcomes: Outcomes) -> None:
        all_bare = [outcomes.pop(name) for name in list(outcomes) if name.startswith(BARE)]
        bare, *_ = sorted(all_bare, key=lambda one: one.status != 0)
        if bare.status != 0:
            raise Unavailable(f"it fails without curb too: {bare.ending}")
        if failed := sum(one.status != 0 for one in all_bare):
            row.add_note(f"{failed} of {len(all_bare)} runs without curb fail too")
        row.expect(bool(bare.events), "it printed no event")
        same_as_bare(row, bare, outcomes)
        row.goes_on = not row.wrong
        longest = max(one.seconds for one in outcomes.values())
        row.add_note(
            f"{len(bare.events)} events, {len(outcomes)} runs under curb: {'identical' if not row.wrong else 'NOT identical'}; "
            f"{bare.seconds:.0f} s bare, at most {longest:.0f} s under curb"
        )


PROGRAMS = {
    "matrix 1: failing calls under PyTorch": Program("matrix/matrix_faults.py", environment=driver_faults.environment, expected_s=30),
    "matrix 6: DataLoader, 4 workers": Program("matrix/matrix_training.py", ("loader",), expected_s=25),
    "matrix 6: DDP spawn": Program("matrix/matrix_ranks.py", ("20", "gloo:2", "nccl:1"), expected_s=35, times=4),
    "matrix 6: CUDA IPC tensors": Program("matrix/matrix_training.py", ("ipc",)),
    "matrix 6: children": Program("matrix/matrix_forks.py", expected_s=35),
    "matrix 7: signals": Program("matrix/matrix_signals.py", ("own",), (("none",),)),
    "matrix 8: threads": Program("matrix/matrix_threads.py", expected_s=15),
    "matrix 9: ends": Program("matrix/matrix_exits.py"),
    "matrix: CUDA graphs": Program("matrix/matrix_training.py", ("graphs",), expected_s=12),
    "matrix: torch.compile": Program("matrix/matrix_training.py", ("compile",), limit_s=120, expected_s=60),
}

_ALL: dict[str, tuple[Plan, Judge]] = {
    "matrix 1: failing calls of the driver": (driver_faults.plan, driver_faults.judge),
    **{name: (program.plan, program.judge) for name, program in PROGRAMS.items()},
    "matrix: compute-sanitizer": (memcheck.plan, memcheck.judge),
}
_together = Together()
MATRIX: dict[str, Case] = {name: _together.case(name, plan, judge) for name, (plan, judge) in _ALL.items()}
