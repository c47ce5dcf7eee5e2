"""The list of all measurements: groups of lanes that take samples in turns, the rows that compare two lanes, and the targets.
Targets stand beside the figures; the bench does not fail by them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_tests import ROOT  # noqa: I001  (sets the path of tensorflow_site.py)
import tensorflow_site
from pairs import Figure
from subjects import BARE, CACHED, CURB, MPS, NAPS, STACKS, TRACE, TURNS

KIB, MIB, GIB = 2**10, 2**20, 2**30
ALL, NOOP, SIM, GPU = ("noop", "sim", "gpu"), ("noop",), ("sim",), ("gpu",)
_SIZES = {
    **{f"{kib} KiB": kib * KIB for kib in (4, 64)},
    **{f"{mib} MiB": mib * MIB for mib in (2, 20, 256)},
    **{f"{gib} GiB": gib * GIB for gib in (1, 8)},
}
_AGAIN = "bare, again"
TWO_PROCESSES = " (two processes)"
"""The end of the names of rows that compare a program with the bare process. The others compare within its process."""


@dataclass(frozen=True)
class Target:
    text: str
    met: Callable[[Figure], bool]
    drivers: tuple[str, ...]
    """The drivers for which it holds. A ratio to the no-op driver means nothing."""


@dataclass(frozen=True)
class LaneSpec:
    """A lane's subject and command. running.py replaces PROBE, PYTHON, PROGRAMS, THRUST and PRELOAD in `argv`."""

    subject: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    switch: bool = False
    """Runs behind libbench_switch.so, so that a program compares within its process too."""


@dataclass(frozen=True)
class Row:
    name: str
    lane: str
    against: str | None
    target: Target | None = None
    within: bool = False
    """Compared with the driver's own functions in the lane's process. If these cannot be found, with `against`."""


@dataclass
class Group:
    name: str
    drivers: tuple[str, ...]
    lanes: dict[str, LaneSpec]
    rows: list[Row]
    rates: bool = False
    """The figures are operations per second, not the time of one."""
    operation: str = "call"
    count: int | None = None
    """Operations in a sample. None: as many as take `sample_ms`, at most `most`."""
    sample_ms: float = 4.0
    most: int = 1_000_000
    pause_s: float = 0.0
    """The pause between two rounds."""
    pairs: int = 31
    limit_s: float = 10.0
    """No new round starts after this time, over all casts."""
    recast: bool = True
    """The lanes start afresh for each cast. Not needed if every sample starts a process."""
    start_s: float = 60.0
    """The limit for the start of its lanes."""
    once: bool = False
    """Independent of the driver, so measured only with the first one."""
    program: bool = False
    """A whole program, which reports its losses at the end."""


def at_most(ratio: float, drivers: tuple[str, ...] = GPU) -> Target:
    return Target(f"<= {ratio:g} x", lambda f: f.ratio is not None and f.ratio.median <= ratio, drivers)


def at_least(ratio: float, drivers: tuple[str, ...] = GPU) -> Target:
    return Target(f">= {ratio:g} x", lambda f: f.ratio is not None and f.ratio.median >= ratio, drivers)


def adds(ns: float, text: str, drivers: tuple[str, ...] = ALL) -> Target:
    return Target(text, lambda f: f.added_ns is not None and f.added_ns.median <= ns, drivers)


def takes(ns: float, text: str) -> Target:
    return Target(text, lambda f: f.ns.median <= ns, ALL)


def groups(peers: Sequence[str]) -> list[Group]:
    return [*_calls(peers), _job(), _threads(peers), *_live(), _edit(), *_traces(), *_starts(peers), *_programs(peers)]


def _compare(
    name: str,
    peers: Sequence[str],
    argv: Sequence[object],
    targets: dict[str, Target | None],
    drivers: tuple[str, ...] = ALL,
    within: bool = False,
    **more: Any,
) -> Group:
    """Makes a group that compares the subjects of `targets` and all peers with bare, or `within` their own processes."""
    words = tuple(map(str, argv))
    subjects = [BARE, *targets, *peers]
    lanes = {subject: LaneSpec(subject, words) for subject in subjects}
    if within:
        rows = [_within(name, subject, targets.get(subject)) for subject in subjects]
    else:
        rows = [Row(name, subject, BARE, targets.get(subject)) for subject in subjects[1:]]
    return Group(name, drivers, lanes, rows, **more)


def _within(name: str, subject: str, target: Target | None, words: str = "") -> Row:
    """Makes a row that compares within the process. Bare's row is a control: its ratio must be 1. MPS is a part of the driver,
    so it is compared with bare. `words`: the end of the lane's name."""
    bare = None if subject == BARE else BARE + words
    return Row(name, subject + words, bare, target, within=subject != MPS)


def _calls(peers: Sequence[str]) -> list[Group]:
    def call(name: str, argv: Sequence[object], targets: dict[str, Target | None], **more: Any) -> Group:
        return _compare(name, peers, ["PROBE", *argv], targets, within=True, **more)

    found = [
        call("a call passed on", ["passed"], {CURB: adds(2, "+2 ns at most", ("noop", "gpu")), NAPS: None, TURNS: None}),
        # A full queue of launches makes the program wait for the GPU, which hides the cost of a launch.
        call("kernel launch", ["launch"], {CURB: None, NAPS: None, TURNS: None}, most=500),
        call("graph launch", ["graph"], {CURB: None}, most=500),
        call("copy of 4 KiB to the device", ["copy"], {CURB: None, NAPS: None, TURNS: None}, most=500),
        call("mem info", ["info"], {CURB: at_most(1.02)}),
    ]
    hit = takes(1200, "<= 1.2 us")
    for size, number in _SIZES.items():
        plain = at_most(1.01) if size == "2 MiB" else None
        with_naps = at_most(1.05) if number >= 2 * MIB else None
        targets = {CURB: plain, NAPS: with_naps, CACHED: hit}
        found.append(call(f"alloc + free, {size}", ["plain", number], targets, operation="pair"))
    for size in ("4 KiB", "2 MiB"):
        name = f"async alloc + free, pool keeps, {size}"
        found.append(call(name, ["async", _SIZES[size]], {CURB: at_most(1.10)}, operation="pair", most=2000))
    return found


def _job() -> Group:
    """Measures a process of a job of eight, whose other processes hold contexts and take samples in turns with it."""
    words = ("PROBE", "plain", str(2 * MIB))
    job = (("CURB_JOB", f"bench {os.getpid()}"), ("CURB_JOB_CAP", "64GiB"))
    alone = (("CURB_JOB", f"bench {os.getpid()} alone"), ("CURB_JOB_CAP", "64GiB"))
    lanes = {CURB: LaneSpec(CURB, words), f"{CURB}, job of 1": LaneSpec(CURB, words, alone)}
    lanes |= {f"{CURB}, job of 8" + (f", another {i}" if i else ""): LaneSpec(CURB, words, job) for i in range(8)}
    name = "alloc + free, 2 MiB, under a job's cap"
    rows = [
        Row(name, f"{CURB}, job of 1", CURB, adds(180, "+180 ns at most")),
        Row(name, f"{CURB}, job of 8", CURB, adds(180, "+180 ns at most")),
    ]
    return Group("job", ALL, lanes, rows, operation="pair", sample_ms=2)


def _threads(peers: Sequence[str]) -> Group:
    lanes: dict[str, LaneSpec] = {}
    rows = []
    for many in (1, 2, 4, 8, 16):
        words = ("PROBE", "threads", str(many), str(2 * MIB))
        name = f"alloc + free, 2 MiB, {many} thread{'s' if many > 1 else ''}"
        for subject in (BARE, CURB, *(peers if many == 16 else ())):
            lanes[f"{subject}, {many}"] = LaneSpec(subject, words)
            target = at_least(0.98, GPU) if many == 8 and subject == CURB else None
            rows.append(_within(name, subject, target, f", {many}"))
    return Group("threads", ALL, lanes, rows, rates=True, operation="pair", sample_ms=80, limit_s=30)


def _live() -> list[Group]:
    """Allocates and frees a block beside many live ones; and exchanges a random one of the many, whose records, curb's and the
    driver's, are then not in the processor's caches."""
    found = []
    for probe, name, target in (
        ("beside", "alloc + free, 4 KiB, beside N live blocks", at_most(1.3, ALL)),
        ("live", "any one of N live blocks exchanged", at_most(1.3, GPU)),
    ):
        ordered = name.replace("4 KiB, ", "async, 512 B, ").replace("live blocks", "live async blocks")
        for drivers, kind, size, row, numbers, of_curb in (
            (NOOP, "plain", 4 * KIB, name, (1000, 10_000, 100_000, 1_000_000), target),
            (SIM, "plain", 4 * KIB, name, (1000, 10_000), None),
            (GPU, "plain", 4 * KIB, name, (1000, 20_000), None),
            (GPU, "async", 512, ordered, (1000, 1_000_000), target),
        ):
            lanes: dict[str, LaneSpec] = {}
            rows = []
            for number in numbers:
                argv = ("PROBE", probe, kind, str(number), str(size))
                lanes |= {f"{subject}, {number:,}": LaneSpec(subject, argv) for subject in (BARE, CURB)}
                rows.append(Row(row.replace("N", f"{number:,}"), f"{CURB}, {number:,}", f"{BARE}, {number:,}"))
            few, many = f"{numbers[0]:,}", f"{numbers[-1]:,}"
            for subject, aim in ((BARE, None), (CURB, of_curb)):
                compared = row.replace("N", f"{many} against {few}")
                rows.append(Row(compared, f"{subject}, {many}", f"{subject}, {few}", aim))
            group = f"live, {probe}, {kind}"
            found.append(Group(group, drivers, lanes, rows, operation="pair", most=2000, sample_ms=2))
    return found


def _edit() -> Group:
    lanes = {CURB: LaneSpec(CURB, ("PROBE", "edits", "64GiB", "1MiB"))}
    rows = [Row("an edit of the policy is in force", CURB, None, takes(1e9, "<= 1 s"))]
    return Group("edit", ALL, lanes, rows, operation="edit", count=1)


def _traces() -> list[Group]:
    # Small samples with pauses, so that the events are written and not dropped.
    found = []
    for name, words in (
        ("alloc + free, 2 MiB", ("plain", str(2 * MIB))),
        ("alloc + free, 4 KiB", ("plain", str(4 * KIB))),
        ("async alloc + free, pool keeps, 4 KiB", ("async", str(4 * KIB))),
    ):
        lanes = {subject: LaneSpec(subject, ("PROBE", *words)) for subject in (CURB, TRACE)}
        rows = [Row(f"traced: {name}", TRACE, CURB, adds(400, "+200 ns an event"))]
        found.append(Group(f"tracing, {name}", ALL, lanes, rows, operation="pair", most=1000, pause_s=0.04))
    # A pair has one stack. A sample has fewer than curb can store at once. Smaller allocations have no stack.
    for name, size, most, target in (
        ("256 MiB, each with its stack", 256 * MIB, 100, adds(50_000, "+50 us a stack")),
        ("2 MiB, below the size", 2 * MIB, 1000, adds(40, "+40 ns")),
    ):
        words = ("PROBE", "plain", str(size))
        lanes = {subject: LaneSpec(subject, words) for subject in (TRACE, STACKS)}
        rows = [Row(f"stacks: alloc + free, {name}", STACKS, TRACE, target)]
        found.append(Group(f"stacks, {name}", ALL, lanes, rows, operation="pair", most=most, pause_s=0.15))
    return found


def _starts(peers: Sequence[str]) -> list[Group]:
    def start(name: str, command: Sequence[str], target: Target, **more: Any) -> Group:
        words = ("PROBE", "starts", "PRELOAD", "--", *command)
        return _compare(name, peers, words, {CURB: target, NAPS: None}, operation="start", recast=False, **more)

    tensor = "import torch; torch.zeros(1, device='cuda')"
    return [
        start("start of /bin/true", ["/bin/true"], adds(100_000, "+0.10 ms at most"), once=True, sample_ms=5),
        start("import torch + first tensor", ["PYTHON", "-c", tensor], at_most(1.01), drivers=GPU, count=1, limit_s=45),
    ]


def _programs(peers: Sequence[str]) -> list[Group]:
    same = at_least(0.995)
    torch = ("PYTHON", "PROGRAMS/torch_train.py")
    uncached = (("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),)
    # Otherwise JAX and TensorFlow take most of the GPU at their start, and two would not fit.
    side_by_side = (("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),)
    grows = (("TF_FORCE_GPU_ALLOW_GROWTH", "true"), *_tensorflow())
    steps_of = ("PYTHON", "PROGRAMS/train_steps.py")
    table: list[tuple[str, Sequence[str], int, dict[str, Target | None], tuple[tuple[str, str], ...]]] = [
        ("PyTorch, transformer", [*torch, "transformer"], 5, {CURB: same, NAPS: same, TURNS: same, TRACE: at_least(0.99)}, ()),
        ("PyTorch, ResNet-18", [*torch, "resnet"], 5, {CURB: same, NAPS: same}, ()),
        ("PyTorch, transformer in a CUDA graph", [*torch, "transformer", "graph"], 5, {CURB: same}, ()),
        ("PyTorch, transformer, torch.compile", [*torch, "transformer", "compile"], 5, {CURB: same}, ()),
        ("PyTorch, caching off", [*torch, "transformer"], 2, {CURB: same, CACHED: at_least(2)}, uncached),
        ("JAX, perceptron", [*steps_of, "jax"], 60, {CURB: same, NAPS: same}, side_by_side),
        ("TensorFlow, CNN", [*steps_of, "tensorflow"], 60, {CURB: same}, grows),
        ("CuPy, temporaries", [*steps_of, "cupy"], 400, {CURB: same, NAPS: same}, ()),
        ("CuPy, its pool off", [*steps_of, "cupy-uncached"], 250, {CURB: same, CACHED: None}, ()),
        ("C++, Thrust temporaries", ["THRUST"], 120, {CURB: same, CACHED: None}, ()),
    ]
    found = []
    for name, argv, steps, targets, env in table:
        own = [BARE, *targets]
        lanes = {subject: LaneSpec(subject, tuple(argv), env, switch=subject in own) for subject in (*own, *peers)}
        # A control: another bare process, whose ratio must be 1.
        lanes[_AGAIN] = lanes[BARE]
        # The blocks that the cache keeps make the driver's own calls quicker, so the cache is judged by the bare process.
        rows = [_within(name, subject, None if subject == CACHED else targets.get(subject)) for subject in own]
        for lane in (_AGAIN, *targets, *peers):
            rows.append(Row(name + TWO_PROCESSES, lane, BARE, targets.get(lane) if lane == CACHED else None))
        found.append(Group(
            name, GPU, lanes, rows, rates=True, operation="step", count=steps, limit_s=17, start_s=150, program=True,
        ))  # fmt: skip
    lanes = {
        subject: LaneSpec(subject, ("PYTHON", "PROGRAMS/torch_release.py", how))
        for subject, how in ((BARE, "inside"), (CURB, "signal"))
    }
    target = Target("<= 1.1 x + 10 ms", _release_met, GPU)
    rows = [Row("PyTorch's cache by SIGUSR1; bare: empty_cache()", CURB, BARE, target)]
    release = Group("release, PyTorch", GPU, lanes, rows, operation="release", count=1, start_s=150, program=True)
    return [*found, release]


def _tensorflow() -> tuple[tuple[str, str], ...]:
    """Returns the variables that a program needs to import TensorFlow; none if it is not installed."""
    try:
        return tuple(tensorflow_site.environment(ROOT / "build", fetch=False).items())
    except tensorflow_site.NoTensorFlow:
        return ()


def _release_met(figure: Figure) -> bool:
    return figure.base_ns is not None and figure.ns.median <= 1.1 * figure.base_ns.median + 10e6
