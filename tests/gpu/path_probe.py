"""Runs one program for each path to memory. Each fills a cap of 4,096 MiB and tries to exceed it, while NVML watches it."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path as FilePath
from typing import Any

from lab import PROGRAMS, Lab, Preload
from measuring.books import REPORT_ONLY, Comparison, NoBooks, compare, worst
from measuring.watch import MIB
from row import CAP, CAP_MIB, GRANULE_MIB, UNUSED_MIB
from session import Event, Unavailable

_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
# A random walk with fewer refusals, or with a peak further below the cap, did not test the cap. curb keeps 160 MiB of the cap
# free until the first kernels have run, and the walk's largest request is 128 MiB.
_WALK_REFUSALS, _WALK_SHORT_MIB = 100, 160 + 128


@dataclass(frozen=True)
class Path:
    """A path to memory. `row`: its name in programs/paths.cpp, or a family's. `expected`: `fills` the cap and is refused there; is `refused`;
    is `served`; `walks` at random."""

    name: str
    row: str
    expected: str = "fills"
    device_figure: bool = False
    """Judged by the use of the whole device: NVML counts managed memory for no process."""
    over_mib: int = 0
    """By how much it may exceed the cap: the size of code is unknown until the driver has loaded it."""
    is_unloaded: bool = False
    """Exceeds the cap for a moment only: curb unloads the module again. A library cannot be unloaded for the program."""


_CHOSEN = (
    Path("cuMemAlloc 256 MiB", "plain"),
    Path("cuMemAlloc 2 MiB", "plain-2MiB"),
    Path("cuMemAlloc 1 MiB + 1 B", "plain-1MiB+1"),
    Path("cuMemAllocPitch", "pitch"),
    Path("cuMemAllocManaged, touched (device figure)", "managed", device_figure=True),
    Path("cuMemAllocAsync", "async"),
    Path("cuMemAllocFromPoolAsync", "pool"),
    Path("freed but reserved by the pool, then cuMemAlloc", "reserved"),
    Path("cuMemCreate, handle released after mapping", "vmm"),
    Path("cuArrayCreate", "array"),
    Path("cuArrayCreate, 256 x 256", "array-small"),
    Path("cuArray3DCreate", "array-3d"),
    Path("cuMipmappedArrayCreate, 1 level", "mipmap-1"),
    Path("cuMipmappedArrayCreate, all levels", "mipmap-all"),
    Path("graph memory node", "graph"),
    Path("graph memory, captured", "graph-captured"),
    Path("CU_LIMIT_STACK_SIZE 192 KiB", "stack-192KiB", "refused"),
    Path("CU_LIMIT_STACK_SIZE 8 KiB", "stack-8KiB", "served"),
    Path("kernel with 64 KiB of local memory", "local-64KiB", "refused"),
    Path("kernel with 8 KiB of local memory", "local-8KiB", "served"),
    Path("cuCtxCreate", "contexts"),
    Path("module with a 256 MiB array, PTX", "module", over_mib=256, is_unloaded=True),
    Path("module with a 256 MiB array, cubin", "module-cubin", over_mib=256, is_unloaded=True),
    Path("library with a 256 MiB array", "library", over_mib=256),
    Path("all of them at random, 20,000 steps", "mixed", "walks"),
)
# The calls that these paths have refused; the two of uploads, whose graphs share their memory; and those that take nothing.
_TRIED = {
    "cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemAllocManaged", "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemCreate",
    "cuArrayCreate_v2", "cuArray3DCreate_v2", "cuMipmappedArrayCreate", "cuGraphLaunch", "cuCtxSetLimit", "cuLaunchKernel",
    "cuCtxCreate_v2", "cuModuleLoadData", "cuLibraryGetGlobal",
    "cuGraphUpload", "cuGraphInstantiateWithParams",
    "cuMemHostAlloc", "cuStreamBeginCapture_v2",
}  # fmt: skip


def _of_families() -> tuple[Path, ...]:
    """Returns a path for each family of tests/families that another call refuses, so that a new one needs no row here."""
    table = (FilePath(__file__).resolve().parents[1] / "families" / "families.cpp").read_text().split("kFamilies[] = {")[1]
    rows = re.findall(r'\{"(\w+)", "(\w+)", \w+, \d+,([^}]+)\}', table)
    refused = {name: (re.findall(r'"(\w+)"', rest) or [entry])[0] for name, entry, rest in rows}
    return tuple(Path(call, name) for name, call in refused.items() if call not in _TRIED)


PATHS = (*_CHOSEN[:-1], *_of_families(), _CHOSEN[-1])


@dataclass
class Found:
    """The result of one path in one column. Only curb's column is judged."""

    peak_mib: float = 0.0
    served: int = 0
    tried: int = 0
    error: str = ""
    goes_on: bool | None = None
    books: dict[str, dict[str, Any]] = field(default_factory=dict)
    worst_off_mib: float | None = None
    details: Event = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    skipped: str = ""
    sampling: dict[str, Any] = field(default_factory=dict)

    def expect(self, right: bool, otherwise: str) -> None:
        if not right:
            self.wrong.append(otherwise)


def program(lab: Lab) -> list[str]:
    return [str(lab.built("tests/paths"))]


def probe(lab: Lab, path: Path, label: str, column: Preload | None) -> Found:
    """`label`: "curb", "bare", or the name of `column`."""
    found = Found()
    try:
        _probe(lab, path, label, column, found)
    except Unavailable as why:
        found.skipped = str(why)
    except RuntimeError as failure:  # a failing path does not stop the others
        found.goes_on = False
        text = str(failure)
        # Results are read on other machines, so the text must not name folders of this one.
        for folder in (lab.folder, PROGRAMS, lab.build.parent, *([column.library.parent] if column else [])):
            text = text.replace(f"{folder}/", "")
        found.wrong.append(text)
    return found


def _probe(lab: Lab, path: Path, label: str, column: Preload | None, found: Found) -> None:
    argv = [*program(lab), path.row]
    if path.row == "module-cubin":
        argv.append(str(lab.cubin("large_global.cu")))
    name = f"{label} {path.row}"
    under_curb = label == "curb"
    job = lab.job(name, CAP, **REPORT_ONLY)
    session = lab.capped(argv, job) if under_curb else lab.bare(argv, name, column.variables if column else {})
    books: dict[str, Comparison] = {}

    def check_books(when: str) -> None:
        held_mib = session.watch.settle() / MIB  # in every column, so that NVML sees the peak
        if under_curb:
            stays = path.is_unloaded and held_mib > CAP_MIB + GRANULE_MIB
            found.expect(not stays, f"{when}: holds {held_mib:,.0f} MiB under a cap of {CAP_MIB:,} MiB")
            try:
                books[when] = compare(session, job.log)
            except NoBooks as missing:
                found.wrong.append(f"{when}: {missing}")

    with session:
        try:
            session.expect("warm", 60)
            warm_mib = session.watch.settle() / MIB
            session.tell("fill")
            full = session.expect("full", 120)
            _record(found, full)
            check_books("at the cap")
            session.tell("free")
            freed = session.expect("freed", 60)
            found.goes_on = full["works"] and freed["works"] and freed["again"]
            check_books("after the frees")
            session.end()
        finally:
            watch = session.watch
            peak = watch.peak_used - watch.used_before if path.device_figure else watch.peak
            found.peak_mib = round(peak / MIB, 1)
            found.sampling = watch.sampling()
            found.books = {when: asdict(one) | {"off_mib": one.off_mib} for when, one in books.items()}
            furthest = worst(books.values())
            found.worst_off_mib = furthest.off_mib if furthest else None
            if under_curb:
                found.expect(peak > 0, "NVML never showed the process: it was not watched")
                over = found.peak_mib - CAP_MIB - GRANULE_MIB - path.over_mib
                found.expect(over <= 0, f"held {found.peak_mib:,.0f} MiB under a cap of {CAP_MIB:,} MiB")
    if under_curb:
        _judge(found, path, full, warm_mib)
        for when, one in books.items():
            found.expect(one.agrees, f"{when} {one.text}")


def _record(found: Found, full: Event) -> None:
    found.details = {name: value for name, value in full.items() if name != "event"}
    found.served, found.tried = full["served"], full["tried"]
    if "by_error" in full:
        found.error = ", ".join(sorted({error.split(": ")[-1] for error in full["by_error"]}))
    else:
        found.error = full["error"]


def _judge(found: Found, path: Path, full: Event, warm_mib: float) -> None:
    if path.expected == "served":
        found.expect(found.served == 1 and not found.error, f"refused, though it fits: {full['call']} {found.error}")
    else:
        found.expect(found.error == _OUT_OF_MEMORY, f"refused with '{found.error}', not with {_OUT_OF_MEMORY} alone")
    if path.expected == "refused":
        found.expect(found.served == 0, "served, though it must be refused")
    if path.expected == "fills":
        least = _least(path, full, warm_mib)
        found.expect(found.served >= least, f"only {found.served:,} pieces served, {least:,} fit")
    if path.expected == "walks":
        refusals = found.tried - found.served
        managed_mib = full["most_managed_bytes"] / MIB
        near = refusals >= _WALK_REFUSALS and found.peak_mib + managed_mib >= CAP_MIB - _WALK_SHORT_MIB
        found.expect(near, f"was not near the cap: {refusals} refusals, peak {found.peak_mib:,.0f} MiB, and at most {managed_mib:,.0f} managed")
    found.expect(bool(full["works"]), "a memset or a kernel failed at the cap")
    found.expect(found.goes_on is not False, "does not go on after all was freed")


def _least(path: Path, full: Event, warm_mib: float) -> int:
    """Returns how many pieces fit under the cap, by what one takes of the device."""
    piece_mib = full["piece_bytes"] / MIB
    if path.row == "contexts":
        piece_mib = warm_mib  # a context, and little else
    elif piece_mib > 1:
        piece_mib = math.ceil(piece_mib / GRANULE_MIB) * GRANULE_MIB
    if piece_mib == 0:
        return 1  # nothing was served, so the size of a piece is unknown
    return int((CAP_MIB - UNUSED_MIB - warm_mib) / piece_mib)
