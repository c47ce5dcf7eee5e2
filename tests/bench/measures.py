"""The one list of what is measured: groups of lanes that take samples in turns, the rows that hold one lane against
another, and the figures that are aimed at. Targets are shown beside what was measured; nothing is judged by them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gpu_tests import ROOT  # noqa: I001  (where tensorflow_site.py is found)
import tensorflow_site
from pairs import Figure
from subjects import BARE, CACHED, CURB, MPS, TRACE

KIB, MIB, GIB = 2**10, 2**20, 2**30
ALL, NOOP, SIM, GPU = ("noop", "sim", "gpu"), ("noop",), ("sim",), ("gpu",)


@dataclass(frozen=True)
class Target:
    text: str
    met: Callable[[Figure], bool]
    drivers: tuple[str, ...]
    """Where it is meant: a ratio to a driver that does nothing says nothing."""


@dataclass(frozen=True)
class LaneSpec:
    """`argv`: PROBE, PYTHON, PROGRAMS, THRUST, CURB and PRELOAD stand for what the bench finds (bench.py)."""

    subject: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Row:
    name: str
    lane: str
    against: str | None
    target: Target | None = None
    within: bool = False
    """Held against the driver's own functions in the lane's process; against `against`, where they cannot be had."""


@dataclass
class Group:
    name: str
    drivers: tuple[str, ...]
    lanes: dict[str, LaneSpec]
    rows: list[Row]
    rates: bool = False
    """Operations per second, not time for one."""
    operation: str = "call"
    count: int | None = None
    """Operations in a sample; None: as many as take `sample_ms`, `most` at the most."""
    sample_ms: float = 4.0
    most: int = 1_000_000
    pause_s: float = 0.0
    """Between rounds."""
    pairs: int = 31
    limit_s: float = 10.0
    """After which no new round begins, in all casts together."""
    recast: bool = True
    """The lanes are started afresh for each cast. Not where every sample starts a process anyway."""
    start_s: float = 60.0
    once: bool = False
    """Whichever driver there is: with the first of them alone."""
    program: bool = False
    """Says at the end what it has computed, and is watched by NVML."""


def at_most(ratio: float, drivers: tuple[str, ...] = GPU) -> Target:
    return Target(f"<= {ratio:g} x", lambda f: f.ratio is not None and f.ratio.median <= ratio, drivers)


def at_least(ratio: float, drivers: tuple[str, ...] = GPU) -> Target:
    return Target(f">= {ratio:g} x", lambda f: f.ratio is not None and f.ratio.median >= ratio, drivers)


def adds(ns: float, text: str, drivers: tuple[str, ...] = ALL) -> Target:
    return Target(text, lambda f: f.added_ns is not None and f.added_ns.median <= ns, drivers)


def takes(ns: float, text: str, drivers: tuple[str, ...] = ALL) -> Target:
    return Target(text, lambda f: f.ns.median <= ns, drivers)


_SIZES = {"4 KiB": 4 * KIB, "64 KiB": 64 * KIB, "2 MiB": 2 * MIB, "256 MiB": 256 * MIB, "1 GiB": GIB, "8 GiB": 8 * GIB}


_AGAIN = "bare, again"


class _Table:
    def __init__(self, peers: Sequence[str]) -> None:
        self.groups: list[Group] = []
        self._peers = peers

    def compare(
        self,
        name: str,
        argv: Sequence[object],
        targets: dict[str, Target | None],
        drivers: tuple[str, ...] = ALL,
        env: tuple[tuple[str, str], ...] = (),
        within: bool = False,
        control: bool = False,
        **more: object,
    ) -> Group:
        """Each of the subjects in `targets`, and every peer, against bare, or `within` its process. `control`: another
        bare process too, whose ratio has to be 1."""
        words = tuple(map(str, argv))
        subjects = [BARE, *targets, *self._peers]
        lanes = {subject: LaneSpec(subject, words, env) for subject in subjects}
        if within:
            rows = [_within(name, subject, targets.get(subject)) for subject in subjects]
        else:
            rows = [Row(name, subject, BARE, targets.get(subject)) for subject in subjects[1:]]
        if control:
            lanes[_AGAIN] = lanes[BARE]
            rows.insert(0, Row(name, _AGAIN, BARE))
        return self.add(Group(name, drivers, lanes, rows, **more))  # type: ignore[arg-type]

    def add(self, group: Group) -> Group:
        self.groups.append(group)
        return group

    def calls(self) -> None:
        twenty = adds(20, "+20 ns at most", ("noop", "gpu"))
        call = partial(self.compare, within=True)
        call("a call passed on", ["PROBE", "passed"], {CURB: twenty})
        # A queue of launches that is full makes the program wait for the GPU, which hides what a launch costs.
        call("kernel launch", ["PROBE", "launch"], {CURB: None}, most=500)
        call("graph launch", ["PROBE", "graph"], {CURB: None}, most=500)
        call("mem info", ["PROBE", "info"], {CURB: at_most(1.02)})
        hit = takes(1000, "<= 1 us")
        for size, number in _SIZES.items():
            plain = at_most(1.01) if size == "2 MiB" else None
            call(
                f"alloc + free, {size}",
                ["PROBE", "plain", number],
                {CURB: plain, CACHED: hit},
                operation="pair",
            )
        for size in ("4 KiB", "2 MiB"):
            call(
                f"async alloc + free, pool keeps, {size}",
                ["PROBE", "async", _SIZES[size]],
                {CURB: at_most(1.15)},
                operation="pair",
                most=2000,
            )
        for size in ("2 MiB", "256 MiB"):
            call(
                f"create, map, unmap, release, {size}",
                ["PROBE", "mapped", _SIZES[size]],
                {CURB: None},
                operation="round",
            )
        self.compare("refusal", ["PROBE", "refused", 1024 * GIB], {CURB: None})

    def threads(self) -> None:
        lanes: dict[str, LaneSpec] = {}
        rows = []
        # Threads that have no core of their own take turns.
        eightfold = at_least(8, NOOP) if (os.cpu_count() or 1) >= 16 else None
        for many in (1, 2, 4, 8, 16):
            words = ("PROBE", "threads", str(many), str(2 * MIB))
            subjects = [BARE, CURB, *(self._peers if many == 16 else [])]
            lanes |= {f"{subject}, {many}": LaneSpec(subject, words) for subject in subjects}
            target = at_least(0.95) if many == 16 else None
            rows += [
                _within(
                    f"alloc + free, 2 MiB, {_threads(many)}",
                    subject,
                    target if subject == CURB else None,
                    f", {many}",
                )
                for subject in subjects
            ]
        rows += [
            Row("16 threads against 1", f"{BARE}, 16", f"{BARE}, 1"),
            Row("16 threads against 1", f"{CURB}, 16", f"{CURB}, 1", eightfold),
        ]
        self.add(Group("threads", ALL, lanes, rows, rates=True, operation="pair", sample_ms=80, limit_s=30))

    def live(self) -> None:
        """Two things: a block comes and goes beside many others, or any one of the many is exchanged, and then the books,
        and the driver's, are read where the processor has not looked for long."""
        thousand, million = 1000, 1_000_000
        small = str(4 * KIB)
        for probe, name, target in (
            ("beside", "alloc + free, 4 KiB, beside N live blocks", at_most(1.3, ALL)),
            ("live", "any one of N live blocks exchanged", at_most(1.3, GPU)),
        ):
            self._live(NOOP, (probe, "plain"), small, name, (thousand, 10_000, 100_000, million), target)
            self._live(SIM, (probe, "plain"), small, name, (thousand, 10_000), None)
            self._live(GPU, (probe, "plain"), small, name, (thousand, 20_000), None)
            ordered = name.replace("4 KiB, ", "async, 512 B, ").replace("live blocks", "live async blocks")
            self._live(GPU, (probe, "async"), "512", ordered, (thousand, million), target)

    def _live(
        self,
        drivers: tuple[str, ...],
        words: tuple[str, str],
        size: str,
        name: str,
        numbers: Sequence[int],
        target: Target | None,
    ) -> None:
        lanes: dict[str, LaneSpec] = {}
        rows = []
        for number in numbers:
            argv = ("PROBE", words[0], words[1], str(number), size)
            lanes |= {f"{subject}, {number:,}": LaneSpec(subject, argv) for subject in (BARE, CURB)}
            rows.append(Row(name.replace("N", f"{number:,}"), f"{CURB}, {number:,}", f"{BARE}, {number:,}"))
        few, many = f"{numbers[0]:,}", f"{numbers[-1]:,}"
        for subject in (BARE, CURB):
            held = name.replace("N", f"{many} against {few}")
            rows.append(Row(held, f"{subject}, {many}", f"{subject}, {few}", target if subject == CURB else None))
        group = f"live, {words[0]}, {words[1]}"
        self.add(Group(group, drivers, lanes, rows, operation="pair", most=2000, sample_ms=2))

    def policies(self) -> None:
        pair = ("PROBE", "plain", str(2 * MIB))
        lanes = {
            CURB: LaneSpec(CURB, pair),
            "edited": LaneSpec(CURB, ("PROBE", "reloads", "64GiB", "63GiB")),
        }
        rows = [Row("alloc + free, 2 MiB, the policy edited every 2 ms", "edited", CURB)]
        self.add(Group("reload under load", ALL, lanes, rows, operation="pair", sample_ms=25))
        lanes = {CURB: LaneSpec(CURB, ("PROBE", "edits", "64GiB", "1MiB"))}
        rows = [Row("an edit of the policy is in force", CURB, None, takes(1e9, "<= 1 s"))]
        self.add(Group("edit", ALL, lanes, rows, operation="edit", count=1))

    def releases(self) -> None:
        for kind, step in (("plain", "cache"), ("pools", "pools")):
            blocks = (kind, "64", str(32 * MIB))
            lanes = {
                BARE: LaneSpec(BARE, ("PROBE", "given-back", *blocks)),
                CACHED: LaneSpec(CACHED, ("PROBE", "released", *blocks, "CURB", "release", "PID", "--step", step)),
            }
            by_hand = "the program frees them" if kind == "plain" else "the program trims its pool"
            rows = [
                Row(f"curb release --step {step}, 64 x 32 MiB; bare: {by_hand}", CACHED, BARE),
            ]
            self.add(Group(f"release, {step}", (*SIM, *GPU), lanes, rows, operation="release", count=1))

    def traces(self) -> None:
        # Few in a sample, and time between them: what is measured are events that are written, not dropped.
        event = adds(400, "+200 ns an event")
        for name, words in (
            ("alloc + free, 2 MiB", ("plain", str(2 * MIB))),
            ("alloc + free, 4 KiB", ("plain", str(4 * KIB))),
            ("async alloc + free, pool keeps, 4 KiB", ("async", str(4 * KIB))),
        ):
            lanes = {subject: LaneSpec(subject, ("PROBE", *words)) for subject in (CURB, TRACE)}
            rows = [Row(f"traced: {name}", TRACE, CURB, event)]
            self.add(Group(f"tracing, {name}", ALL, lanes, rows, operation="pair", most=1000, pause_s=0.04))

    def starts(self) -> None:
        def start(name: str, command: Sequence[str], target: Target | None, **more: object) -> None:
            words = ("PROBE", "starts", "PRELOAD", "--", *command)
            self.compare(name, words, {CURB: target}, operation="start", recast=False, **more)  # type: ignore[arg-type]

        start("start of /bin/true", ["/bin/true"], adds(100_000, "+0.10 ms at most"), once=True, sample_ms=5)
        start("start of python3 -c pass", ["PYTHON", "-c", "pass"], None, once=True)
        tensor = "import torch; torch.zeros(1, device='cuda')"
        start("import torch + first tensor", ["PYTHON", "-c", tensor], at_most(1.01), drivers=GPU, count=1, limit_s=45)

    def programs(self) -> None:
        same = at_least(0.995)

        def program(
            name: str, argv: Sequence[str], steps: int, targets: dict[str, Target | None], **more: object
        ) -> None:
            self.compare(
                name,
                argv,
                targets,
                GPU,
                rates=True,
                operation="step",
                count=steps,
                limit_s=14,
                start_s=150,
                program=True,
                control=True,
                **more,  # type: ignore[arg-type]
            )

        torch = ("PYTHON", "PROGRAMS/torch_train.py")
        uncached = (("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),)
        # JAX and TensorFlow take most of the GPU at once otherwise, and two would not fit side by side.
        side_by_side = (("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),)
        program("PyTorch, transformer", [*torch, "transformer"], 5, {CURB: same, TRACE: at_least(0.99)})
        program("PyTorch, ResNet-18", [*torch, "resnet"], 5, {CURB: same})
        program("PyTorch, transformer in a CUDA graph", [*torch, "transformer", "graph"], 5, {CURB: same})
        program("PyTorch, transformer, torch.compile", [*torch, "transformer", "compile"], 5, {CURB: same})
        program("PyTorch, caching off", [*torch, "transformer"], 2, {CURB: same, CACHED: at_least(2)}, env=uncached)
        program("JAX, perceptron", ["PYTHON", "PROGRAMS/jax_train.py"], 60, {CURB: same}, env=side_by_side)
        grows = (("TF_FORCE_GPU_ALLOW_GROWTH", "true"), *_tensorflow())
        program("TensorFlow, CNN", ["PYTHON", "PROGRAMS/tensorflow_train.py"], 60, {CURB: same}, env=grows)
        program("CuPy, temporaries", ["PYTHON", "PROGRAMS/cupy_loop.py"], 400, {CURB: same})
        program("CuPy, its pool off", ["PYTHON", "PROGRAMS/cupy_loop.py", "uncached"], 250, {CURB: same, CACHED: None})
        program("C++, Thrust temporaries", ["THRUST"], 120, {CURB: same, CACHED: None})
        lanes = {
            BARE: LaneSpec(BARE, ("PYTHON", "PROGRAMS/torch_release.py", "inside")),
            CURB: LaneSpec(CURB, ("PYTHON", "PROGRAMS/torch_release.py", "signal")),
        }
        target = Target("<= 1.1 x + 10 ms", _release_met, GPU)
        rows = [Row("PyTorch's cache by SIGUSR1; bare: empty_cache()", CURB, BARE, target)]
        self.add(Group("release, PyTorch", GPU, lanes, rows, operation="release", count=1, start_s=150, program=True))


def _tensorflow() -> tuple[tuple[str, str], ...]:
    """The variables with which a program has TensorFlow; none where it is not installed."""
    try:
        return tuple(tensorflow_site.environment(ROOT / "build", fetch=False).items())
    except tensorflow_site.NoTensorFlow:
        return ()


def _release_met(figure: Figure) -> bool:
    return figure.base_ns is not None and figure.ns.median <= 1.1 * figure.base_ns.median + 10e6


def _within(name: str, subject: str, target: Target | None, words: str = "") -> Row:
    """Bare's is a control: its ratio has to be 1. MPS is in the driver, not before it. `words` end the lane's name."""
    bare = None if subject == BARE else BARE + words
    return Row(name, subject + words, bare, target, within=subject != MPS)


def _threads(many: int) -> str:
    return "1 thread" if many == 1 else f"{many} threads"


def groups(peers: Sequence[str]) -> list[Group]:
    table = _Table(peers)
    table.calls()
    table.threads()
    table.live()
    table.policies()
    table.releases()
    table.traces()
    table.starts()
    table.programs()
    return table.groups
