"""Each framework up to the cap, past the refusal, and through a release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lab import Case, Lab, torch_allocator
from releasing import record, release
from row import CAP, CAP_MIB, UNUSED_MIB, Row
from session import Event, Job, ProgramFailed, Session
from watch import MIB

# What a release must bring back of what was filled and freed. Not all: a framework's own small blocks pin a segment.
_SHARE_BACK = 0.9


@dataclass(frozen=True)
class Fill:
    """One framework with one allocator. `gives_back`: whether a release is expected to free its cache."""

    program: str
    module: str
    errors: tuple[str, ...]
    says: str = ""
    env: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    gives_back: bool = True
    fills_to_the_cap: bool = True
    judged: bool = True
    note: str = ""


def _torch(conf: str, **more: object) -> Fill:
    errors = ("torch.OutOfMemoryError",)
    return Fill("torch_fill.py", "torch", errors, "out of memory", torch_allocator(conf), **more)  # type: ignore[arg-type]


def _tensorflow(allocator: str, **more: object) -> Fill:
    env = {"TF_GPU_ALLOCATOR": allocator} if allocator else {}
    errors = ("tensorflow.ResourceExhaustedError",)
    return Fill("tensorflow_fill.py", "tensorflow", errors, "OOM when allocating", env, **more)  # type: ignore[arg-type]


def _jax(allocator: str, **more: object) -> Fill:
    env = {"XLA_PYTHON_CLIENT_ALLOCATOR": allocator} if allocator else {}
    errors = ("jax.JaxRuntimeError", "jaxlib.XlaRuntimeError", "jaxlib.JaxRuntimeError")
    return Fill("jax_fill.py", "jax", errors, "RESOURCE_EXHAUSTED", env, **more)  # type: ignore[arg-type]


FILLS = {
    "torch native": _torch(""),
    "torch expandable segments": _torch("expandable_segments:True"),
    "torch cudaMallocAsync": _torch("backend:cudaMallocAsync"),
    "torch native, cold": _torch(
        "", arguments=("cold",), judged=False, note="memory first, code at the cap, where cuBLAS finds no room for its own memory"
    ),
    "jax default": _jax(
        "", gives_back=False, fills_to_the_cap=False, note="BFC: nothing can be given back, it keeps what it has"
    ),
    "jax cuda_async": _jax("cuda_async"),
    "jax platform": _jax("platform", gives_back=False, note="caches nothing: what is deleted is back at once"),
    "tensorflow default": _tensorflow(
        "", gives_back=False, fills_to_the_cap=False, note="BFC: nothing can be given back, it keeps what it has"
    ),
    "tensorflow cuda_malloc_async": _tensorflow("cuda_malloc_async"),
    "cupy": Fill("cupy_fill.py", "cupy", ("cupy.OutOfMemoryError", "cupy_backends.OutOfMemoryError"), "Out of memory"),
}


def fill_case(fill: Fill) -> Case:
    def case(lab: Lab, row: Row) -> None:
        packages = lab.need(fill.module)
        row.note = fill.note
        job = lab.job(row.name, CAP)
        session = lab.capped(lab.python(fill.program, *fill.arguments), job, fill.env | packages)
        with row.watching(session, CAP_MIB if fill.judged else None):
            try:
                go_through(session, job, fill, row)
            except ProgramFailed as failure:
                row.goes_on = False
                row.expect(False, str(failure))
        if not fill.judged:
            row.verdict = "info"
            row.add_note(f"peak {(row.peak_mib or 0) - CAP_MIB:+.0f} MiB against the cap")

    return case


def go_through(session: Session, job: Job, fill: Fill, row: Row, at_the_cap: Callable[[], None] = lambda: None) -> Event:
    """Returns the "warm" event. Calls `at_the_cap` once the program has been refused."""
    warm = session.expect("warm", 120)
    row.details["warm_mib"] = round(session.watch.held / MIB)
    session.tell("fill")
    full = session.expect("full", 120)
    row.details["full"] = full
    row.error = ", ".join(full["errors"])
    row.expect(bool(full["errors"]), "was never refused")
    row.expect(set(full["errors"]) <= set(fill.errors), f"unexpected error {row.error}: {full['message'][:200]}")
    row.expect(fill.says in full["message"], f"'{fill.says}' is not in the error's text: {full['message'][:200]}")
    row.expect(full["intact"], "memory does not hold what was written")
    held = session.watch.settle() / MIB
    if fill.fills_to_the_cap and fill.judged:
        row.expect(held >= CAP_MIB - UNUSED_MIB, f"refused with only {held:.0f} MiB held: the cap is not used")
    at_the_cap()
    session.tell("go on")
    idle = session.expect("idle", 60)
    row.goes_on = idle["correct"]
    row.expect(idle["correct"], "computes wrongly after the refusal")
    # Some give a part back by themselves once it is free: a pool, down to its release threshold; PyTorch, its whole cache
    # when one more block is refused.
    back_already = max(0.0, held - session.watch.settle() / MIB)
    back = release(session, job.log)
    row.details["cached_mib"] = idle["cached_mib"]
    record(row, back)
    if fill.gives_back:
        share = (back.mib + back_already) / full["filled_mib"]
        row.expect(share >= _SHARE_BACK, f"{back.mib:.0f} of {full['filled_mib']} MiB came back")
        row.details["given_back_before_mib"] = round(back_already)
    session.tell("again")
    done = session.expect("done", 60)
    row.goes_on = row.goes_on and done["correct"]
    row.expect(done["correct"], "computes wrongly after the release")
    session.finish()
    return warm
