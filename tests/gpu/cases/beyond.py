"""What reaches the driver in other ways than PyTorch, JAX and CuPy: each bare and under a cap, with the same result.

Packages that the machine's Python lacks come from folders of their own under CURB_BEYOND: NAME/ goes on the PYTHONPATH of its
program alone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from cases.fill import Fill, go_through
from lab import Case, Lab, Unavailable
from row import CAP, CAP_MIB, Row
from session import ProgramFailed

_SITE = "CURB_BEYOND"
_BUILT_WITHIN_S = 240


@dataclass(frozen=True)
class Beyond:
    """`folder`: under CURB_BEYOND, if the package may come from there; it must if `carried`. `needs`: further modules."""

    fill: Fill
    folder: str = ""
    carried: bool = False
    needs: tuple[str, ...] = field(default=())


_PROGRAMS = {
    "Numba": Beyond(
        Fill(
            "numba_fill.py",
            "numba",
            ("numba.CudaAPIError", "numba_cuda.CudaAPIError"),
            "OUT_OF_MEMORY",
            gives_back=False,
            note="cuMemAlloc, no cache: what is freed is back at once, but for a few frees that Numba defers",
        )
    ),
    "Triton": Beyond(Fill("triton_fill.py", "triton", ("torch.OutOfMemoryError",), "out of memory"), needs=("torch",)),
    "TileLang": Beyond(
        Fill(
            "tilelang_fill.py",
            "tilelang",
            ("torch.OutOfMemoryError",),
            "out of memory",
            note="exports stubs of the driver and of the runtime",
        ),
        folder="tilelang",
        carried=True,
        needs=("torch",),
    ),
    "ONNX Runtime": Beyond(
        Fill(
            "onnxruntime_fill.py",
            "onnxruntime",
            ("onnxruntime.RuntimeException", "onnxruntime.Fail", "builtins.RuntimeError"),
            "memory",
            gives_back=False,
            fills_to_the_cap=False,
            note="its arena doubles each time, so it is refused early, and returns nothing",
        ),
        folder="onnxruntime",
        carried=True,
        needs=("onnx",),
    ),
    "llama.cpp": Beyond(
        Fill(
            "llama_fill.py",
            "llama_cpp",
            ("builtins.MemoryError",),
            "no context",
            gives_back=False,
            fills_to_the_cap=False,
            note="built without flash attention and kernels for quantized weights; caches nothing but its scratch pool",
        ),
        folder="llama",
        carried=True,
    ),
}

_NOT_RUN = {
    "PaddlePaddle": "PyPI's newest GPU wheel is 2.6.2 of 2024, with code for compute 6.1 to 8.6 alone",
    "MegEngine": "PyPI's newest wheel needs CUDA 10.1 and Python 3.10; it exports 380 stubs of the driver",
    "MindSpore": "PyPI's GPU plug-in needs CUDA 11.6; its libakg.so exports 9 names of the driver and 17 of the runtime",
    "vLLM": "too large to be carried (336 MB, and PyTorch of its own); links libcuda, as Triton's launcher does",
    "MLX": "too large to be carried (90 MB); links libcuda",
    "TensorRT": "too large to be carried",
}


def _run(program: Beyond) -> Case:
    def case(lab: Lab, row: Row) -> None:
        fill = program.fill
        env = dict(fill.env) | _where(program)
        for module in program.needs:
            lab.need(module)
        row.note = fill.note
        argv = lab.python(fill.program, *fill.arguments)
        with row.watching(lab.bare(argv, f"{row.name} bare", env), None) as session:
            bare = session.expect("warm", 180)
        row.peak_mib = None
        job = lab.job(row.name, CAP)

        def ask_doctor() -> None:
            said = lab.curb("doctor", str(session.pid), "--json").stdout
            found = json.loads(said).get("findings", [])
            problems = [one for one in found if one.get("result") == "problem"]
            row.details["doctor"] = found
            row.expect(not problems, f"curb doctor PID: {json.dumps(problems)[:300]}")

        session = lab.capped(argv, job, env)
        with row.watching(session, CAP_MIB):
            try:
                warm = go_through(session, job, fill, row, ask_doctor)
            except ProgramFailed as failure:
                row.goes_on = False
                row.expect(False, str(failure))
                return
        row.details["result"] = {"bare": bare["result"], "capped": warm["result"]}
        row.expect(warm["result"] == bare["result"], "computes otherwise than without curb")
        row.add_note("same result as without curb" if warm["result"] == bare["result"] else "OTHER result than without curb")

    return case


def _where(program: Beyond) -> dict[str, str]:
    """What makes the program find its package; raises Unavailable if that is not here."""
    folder = Path(os.environ.get(_SITE, "/nonexistent")) / program.folder
    if program.folder == "llama" and (folder / "llama_cpp").is_dir():
        _wait_for_build(folder)
    if program.folder and (folder / program.fill.module).is_dir():
        return {"PYTHONPATH": _before(str(folder), "PYTHONPATH"), "LD_LIBRARY_PATH": _before(_cuda(), "LD_LIBRARY_PATH")}
    if program.carried or importlib.util.find_spec(program.fill.module) is None:
        raise Unavailable(f"{program.fill.module} with CUDA is not here: name its folder's parent in {_SITE}")
    return {}


def _before(first: str, variable: str) -> str:
    return os.pathsep.join(filter(None, [first, os.environ.get(variable)]))


def _cuda() -> str:
    """The folders of CUDA's libraries: those of the Python's nvidia-* packages, and the toolkit's."""
    nvidia = importlib.util.find_spec("nvidia")
    packages = [Path(root) for root in (nvidia.submodule_search_locations or [] if nvidia else [])]
    folders = [library for root in packages for library in sorted(root.glob("*/lib"))]
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "lib64"
    return os.pathsep.join(map(str, [*folders, toolkit]))


def _wait_for_build(folder: Path) -> None:
    """The build runs beside the other cases. It writes its exit status to `built` when it has ended."""
    deadline = time.monotonic() + _BUILT_WITHIN_S
    while not (folder / "built").exists():
        if time.monotonic() > deadline:
            raise Unavailable("llama.cpp is not built here")
        time.sleep(1)
    if (folder / "built").read_text().strip() != "0":
        raise Unavailable(f"llama.cpp did not build: see {folder / 'build.log'}")


def _not_run(why: str) -> Case:
    def case(lab: Lab, row: Row) -> None:
        raise Unavailable(why)

    return case


BEYOND: dict[str, Case] = {
    **{f"beyond: {name}": _run(program) for name, program in _PROGRAMS.items()},
    **{f"beyond: {name}": _not_run(f"not run: {why}") for name, why in _NOT_RUN.items()},
}
