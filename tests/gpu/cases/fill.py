"""Each framework fills its cap, is refused, and releases. The cases `beyond: …` reach the driver in other ways than PyTorch, JAX,
TensorFlow and CuPy; they run without curb too, and must compute the same.

CURB_BEYOND/NAME may have a package that this Python does not have.
"""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from lab import Case, Lab, torch_allocator
from measuring.watch import MIB
from releasing import record, release
from row import CAP, CAP_MIB, UNUSED_MIB, Row
from session import Job, ProgramFailed, Session

# The least share of the freed memory that a release must return. Not all: a framework's own small blocks keep a segment.
_SHARE_BACK = 0.9
_NO_RELEASE = "BFC: it never returns memory"


@dataclass(frozen=True)
class Fill:
    """`argv`: the program in programs/. `errors`, `text`: the errors at the cap, and a part of their text. `gives_back`: a
    release must free the framework's cache. `bare`: it runs without curb too, and both results must be equal."""

    argv: tuple[str, ...]
    module: str
    errors: tuple[str, ...]
    text: str = ""
    env: dict[str, str] = field(default_factory=dict)
    gives_back: bool = True
    fills_to_the_cap: bool = True
    judged: bool = True
    note: str = ""
    bare: bool = False
    needs: tuple[str, ...] = ()
    """Packages besides `module`."""


def _torch(conf: str = "", name: str = "torch", judged: bool = True, note: str = "") -> Fill:
    errors = ("torch.OutOfMemoryError",)
    return Fill(("fill/fill.py", name), "torch", errors, "out of memory", torch_allocator(conf), judged=judged, note=note)


def _jax(allocator: str, gives_back: bool = True, note: str = "") -> Fill:
    env = {"XLA_PYTHON_CLIENT_ALLOCATOR": allocator} if allocator else {}
    errors = ("jax.JaxRuntimeError", "jaxlib.XlaRuntimeError", "jaxlib.JaxRuntimeError")
    return Fill(("fill/fill.py", "jax"), "jax", errors, "RESOURCE_EXHAUSTED", env, gives_back, bool(allocator), note=note)


def _tensorflow(allocator: str, gives_back: bool = True, note: str = "") -> Fill:
    env = {"TF_GPU_ALLOCATOR": allocator} if allocator else {}
    errors = ("tensorflow.ResourceExhaustedError",)
    return Fill(
        ("fill/fill.py", "tensorflow"), "tensorflow", errors, "OOM when allocating", env, gives_back, bool(allocator), note=note
    )


FILLS = {
    "torch native": _torch(),
    "torch expandable segments": _torch("expandable_segments:True"),
    "torch cudaMallocAsync": _torch("backend:cudaMallocAsync"),
    "torch native, cold": _torch(
        name="cold", judged=False, note="loads code only at the cap, where cuBLAS has no memory left for its own use"
    ),
    "jax default": _jax("", gives_back=False, note=_NO_RELEASE),
    "jax cuda_async": _jax("cuda_async"),
    "jax platform": _jax("platform", gives_back=False, note="has no cache: deleted arrays are freed at once"),
    "tensorflow default": _tensorflow("", gives_back=False, note=_NO_RELEASE),
    "tensorflow cuda_malloc_async": _tensorflow("cuda_malloc_async"),
    "cupy": Fill(
        ("fill/fill.py", "cupy"), "cupy", ("cupy.OutOfMemoryError", "cupy_backends.OutOfMemoryError"), "Out of memory"
    ),
    "beyond: Numba": Fill(
        ("fill/numba_fill.py",),
        "numba",
        ("numba.CudaAPIError", "numba_cuda.CudaAPIError"),
        "OUT_OF_MEMORY",
        gives_back=False,
        note="cuMemAlloc, no cache: memory is freed at once, except for a few frees that Numba defers",
        bare=True,
    ),
    "beyond: Triton": Fill(
        ("fill/triton_fill.py",), "triton", ("torch.OutOfMemoryError",), "out of memory", bare=True, needs=("torch",)
    ),
    "beyond: TileLang": Fill(
        ("fill/tilelang_fill.py",),
        "tilelang",
        ("torch.OutOfMemoryError",),
        "out of memory",
        note="exports stubs of the driver and of the runtime",
        bare=True,
        needs=("torch",),
    ),
    "beyond: ONNX Runtime": Fill(
        ("fill/onnxruntime_fill.py",),
        "onnxruntime",
        ("onnxruntime.RuntimeException", "onnxruntime.Fail", "builtins.RuntimeError"),
        "memory",
        gives_back=False,
        fills_to_the_cap=False,
        note="its arena doubles each time, so it is refused early; it never returns memory",
        bare=True,
        needs=("onnx",),
    ),
    "beyond: llama.cpp": Fill(
        ("fill/llama_fill.py",),
        "llama_cpp",
        ("builtins.MemoryError",),
        "no context",
        gives_back=False,
        fills_to_the_cap=False,
        note="built without flash attention and kernels for quantized weights; its only cache is its scratch pool",
        bare=True,
    ),
}


def fill_case(fill: Fill) -> Case:
    def case(lab: Lab, row: Row) -> None:
        env = fill.env | _packages(lab, fill)
        argv = lab.python(*fill.argv)
        bare = _bare_result(lab, row.name, argv, env) if fill.bare else None
        row.note = fill.note
        job = lab.job(row.name, CAP)
        session = lab.capped(argv, job, env)
        with row.watching(session, CAP_MIB if fill.judged else None):
            try:
                _go_through(lab, session, job, fill, row, bare)
            except ProgramFailed as failure:
                row.goes_on = False
                row.expect(False, str(failure))
        if not fill.judged:
            row.verdict = "info"
            row.add_note(f"its peak differs from the cap by {(row.peak_mib or 0) - CAP_MIB:+.0f} MiB")

    return case


def _packages(lab: Lab, fill: Fill) -> dict[str, str]:
    """Returns the variables that the program needs to import its package. Raises Unavailable."""
    for module in fill.needs:
        lab.need(module)
    folder = Path(os.environ.get("CURB_BEYOND", "/nonexistent")) / fill.module
    if not fill.bare or not folder.is_dir():
        return lab.need(fill.module)
    nvidia = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (nvidia.submodule_search_locations or [] if nvidia else [])]
    cuda = [library for root in roots for library in sorted(root.glob("*/lib"))]
    cuda.append(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "lib64")
    return {
        name: os.pathsep.join([*map(str, first), *filter(None, [os.environ.get(name)])])
        for name, first in (("PYTHONPATH", [folder]), ("LD_LIBRARY_PATH", cuda))
    }


def _bare_result(lab: Lab, name: str, argv: list[str], env: dict[str, str]) -> str:
    with lab.bare(argv, f"{name} bare", env) as session:
        return str(session.expect("warm", 180)["result"])


def _go_through(lab: Lab, session: Session, job: Job, fill: Fill, row: Row, bare: str | None) -> None:
    warm = session.expect("warm", 120)
    row.details["warm_mib"] = round(session.watch.held / MIB)
    if bare is not None:
        row.expect(warm["result"] == bare, f"computes {warm['result']}, without curb {bare}")
    session.tell("fill")
    full = session.expect("full", 120)
    row.details["full"] = full
    row.error = ", ".join(full["errors"])
    row.expect(bool(full["errors"]), "was never refused")
    row.expect(set(full["errors"]) <= set(fill.errors), f"unexpected error {row.error}: {full['message'][:200]}")
    row.expect(fill.text in full["message"], f"'{fill.text}' is not in the error's text: {full['message'][:200]}")
    row.expect(full["intact"], "the memory was overwritten")
    held = session.held_mib()
    if fill.fills_to_the_cap and fill.judged:
        row.expect(held >= CAP_MIB - UNUSED_MIB, f"refused with only {held:.0f} MiB held, far below the cap")
    if fill.bare or fill.module == "torch":
        _ask_doctor(lab, session, row)
    session.tell("go on")
    idle = session.expect("idle", 60)
    row.goes_on = idle["correct"]
    row.expect(idle["correct"], "computes wrongly after the refusal")
    # Some return memory before the release: a pool above its release threshold; PyTorch its whole cache, when it is refused one
    # more block.
    back_already = max(0.0, held - session.held_mib())
    back = release(session, job.log)
    row.details |= {"cached_mib": idle["cached_mib"], "given_back_before_mib": round(back_already)}
    record(row, back)
    if fill.gives_back:
        share = (back.mib + back_already) / full["filled_mib"]
        row.expect(share >= _SHARE_BACK, f"only {back.mib + back_already:.0f} of {full['filled_mib']} MiB came back")
    session.tell("again")
    done = session.expect("done", 60)
    row.goes_on = row.goes_on and done["correct"]
    row.expect(done["correct"], "computes wrongly after the release")
    session.finish()


def _ask_doctor(lab: Lab, session: Session, row: Row) -> None:
    """Judges that `curb doctor PID` finds no problem with the program at its cap."""
    found = json.loads(lab.curb("doctor", str(session.pid), "--json").stdout).get("findings", [])
    problems = [one for one in found if one.get("result") == "problem"]
    row.expect(not problems, f"curb doctor PID: {json.dumps(problems)[:300]}")


FILL_CASES = {name: fill_case(fill) for name, fill in FILLS.items()}
