#!/usr/bin/env python3
"""Measures the cost of a cap: driver calls and whole programs, bare, under curb and under other preloads, in turns.

Uses a no-op driver, a simulated one, and a GPU if there is one. measures.py lists the measurements, docs/PERFORMANCE.md
describes the method. Exit status: 0 all lanes of curb and bare were measured, whatever the figures are; 1 one failed.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import measures
import results as written
from gpu_tests import ROOT, Device, NvmlError, Unavailable, differences, of_toolkit
from running import NO_TIME, OWN, Result, Run, Setting, measured
from subjects import BARE, MPS, Mps, Subject, own_subjects, peer


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add(
        "--against", action="append", default=[], metavar="NAME=LIB[,VAR=VALUE...]|mps",
        help="also measure under this preload, or under NVIDIA's MPS with a memory limit; may be repeated",
    )  # fmt: skip
    add(
        "--driver", nargs="+", choices=list(written.DRIVERS), default=[],
        help="the drivers, in this order (default: gpu and noop; without a GPU noop and sim)",
    )  # fmt: skip
    add("--only", nargs="+", default=[], metavar="WORD", help="only groups whose name contains one of these words")
    add("--list", action="store_true", help="print the names of the groups and exit")
    add("--quick", action="store_true", help="take seven short samples of each lane instead of 31, in one cast")
    add("--casts", type=int, metavar="N", help="start the processes of each lane N times (default 3)")
    add("--minutes", type=float, default=math.inf, metavar="M", help="start nothing new after M minutes")
    add("--gpu", type=int, default=0, metavar="N", help="nvidia-smi's index of the GPU (default 0)")
    add("--build", type=Path, default=ROOT / "build", metavar="DIR", help="the build (default build/)")
    add("--out", type=Path, default=ROOT / "docs" / "results", metavar="DIR", help="the folder for the results")
    add("--resume", type=Path, metavar="DIR", help="continue the run in DIR, without the groups that it has in all their casts")
    add("--keep", type=Path, metavar="DIR", help="keep the lanes' stderr and policies there")
    options = parser.parse_args()
    options.casts = options.casts or (1 if options.quick else 3)
    options.out = options.resume or options.out
    return options


def device_of(options: argparse.Namespace) -> Device | None:
    try:
        return Device(options.gpu)
    except NvmlError:
        return None


def chosen(options: argparse.Namespace, groups: Sequence[measures.Group]) -> list[measures.Group]:
    """Returns the groups that --only selects. Exits if there is none."""
    found = [group for group in groups if not options.only or any(word in group.name for word in options.only)]
    if not found:
        sys.exit(f"bench: no group has {' or '.join(options.only)} in its name; --list prints the names")
    return found


def work(
    groups: Sequence[measures.Group], drivers: Sequence[str], cast: int
) -> Iterator[list[tuple[measures.Group, str]]]:
    """Yields batches of groups, in order. All lanes of a batch start together. A batch of several groups has at most as many
    lanes as there are cores."""
    together: list[tuple[measures.Group, str]] = []
    lanes = 0
    for driver in drivers:
        for group in groups:
            if driver not in group.drivers or (group.once and driver != drivers[0]) or (cast > 0 and not group.recast):
                continue
            if together and lanes + len(group.lanes) > (os.cpu_count() or 1):
                yield together
                together, lanes = [], 0
            together.append((group, driver))
            lanes += len(group.lanes)
    if together:
        yield together


def compile_thrust(setting: Setting) -> None:
    """Compiles programs/thrust_loop.cu if it is not up to date."""
    source = Path(__file__).parent / "programs" / "thrust_loop.cu"
    program = setting.build / "tests" / "bench_thrust"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        try:
            command = [of_toolkit("nvcc"), "-O2", "-std=c++17", "-arch=native", str(source), "-o", str(program)]
        except Unavailable:
            return  # why_no_thrust has this text
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            setting.why_no_thrust = f"nvcc failed: {done.stderr.strip()[-200:]}"
            return
    setting.thrust = program


def show(result: Result) -> None:
    cells = written.cells(result)
    said = f"{cells[4]:>12}  {cells[5]}" if result.figure else f"{'—':>12}  {result.why}"
    print(f"  {result.driver:5}{result.row.name[:60]:61}{result.row.lane:16}{said}", flush=True)


def order(
    groups: Sequence[measures.Group], drivers: Sequence[str], casts: int, one_by_one: bool
) -> Iterator[tuple[int, list[tuple[measures.Group, str]]]]:
    """Yields batches of groups with the number of the cast. All groups once, then all again: if the time is short, rows have
    fewer pairs, but no row is missing. `one_by_one`: all casts of a batch, then the next batch: if the time is short, what is
    there is whole."""
    if one_by_one:
        for batch in work(groups, drivers, 0):
            for cast in range(casts):
                if again := [(group, driver) for group, driver in batch if cast == 0 or group.recast]:
                    yield cast, again
    else:
        for cast in range(casts):
            for batch in work(groups, drivers, cast):
                yield cast, batch


Keep = Callable[[list[Result], list[Subject]], None]


def library_of(options: argparse.Namespace) -> Path:
    library = Path(os.environ.get("CURB_LIBRARY") or options.build / "lib" / "libcurb.so").resolve()
    if not library.exists():
        sys.exit(f"bench: there is no {library}; run scripts/bench, which builds it, or name another one in CURB_LIBRARY")
    return library


def run(
    options: argparse.Namespace, folder: Path, device: Device | None, library: Path, about: dict[str, str], keep: Keep
) -> list[Result]:
    """With --resume, replaces `about` by the description of the run that it continues."""
    try:
        peers = [peer(text) for text in options.against if text != MPS]
    except argparse.ArgumentTypeError as wrong:
        sys.exit(f"bench: --against: {wrong}")
    drivers = options.driver or (["gpu", "noop"] if device else ["noop", "sim"])
    if "gpu" in drivers and device is None:
        sys.exit("bench: --driver gpu: there is no NVIDIA GPU here")
    names = [subject.name for subject in peers] + [MPS] * (MPS in options.against)
    if len(set(names)) < len(names):
        sys.exit(f"bench: --against: two libraries have the same name ({', '.join(names)})")
    every = measures.groups(names)
    groups = chosen(options, every)
    mps = Mps(folder / "mps", options.gpu) if MPS in options.against else None
    earlier = earlier_results(options, every, {group.name for group in groups}, names, about)
    done = {(result.group.name, result.driver) for result in earlier}
    runs: dict[tuple[str, str], Run] = {}

    def results() -> list[Result]:
        """Returns those of the run that this one continues too, in the order of the groups."""
        place = {group.name: number for number, group in enumerate(every)}
        return sorted([*earlier, *_results(runs.values())], key=lambda result: place[result.group.name])

    try:
        subjects = [*own_subjects(library), *peers, *([mps.start()] if mps else [])]
        setting = Setting(
            options.build.resolve(), folder, {subject.name: subject for subject in subjects}, device,
            quick=options.quick, casts=options.casts, deadline=time.monotonic() + options.minutes * 60,
        )  # fmt: skip
        if "gpu" in drivers and any("Thrust" in group.name for group in groups):
            compile_thrust(setting)
        for cast, batch in order(groups, drivers, options.casts, one_by_one=options.resume is not None):
            now = [
                runs.setdefault((group.name, driver), Run(group, driver, setting))
                for group, driver in batch
                if (group.name, driver) not in done
            ]
            if not now or (cast > 0 and setting.left_s() <= 0):
                continue
            print(f"Cast {cast + 1} of {options.casts}:")
            measured(now)
            for result in _results(now):
                show(result)
            keep(results(), subjects)
    finally:
        if mps:
            mps.stop()
    return results()


def earlier_results(
    options: argparse.Namespace, groups: Sequence[measures.Group], again: set[str], peers: list[str], about: dict[str, str]
) -> list[Result]:
    """Returns the results of the run that --resume continues, and its description in `about`. Exits if that run was of another
    machine, library or package, or against other peers too. See `written.read` for `again`."""
    found = written.read(options.resume, groups, again, options.casts) if options.resume else None
    if found is None:
        return []
    machine, subjects, results = found
    if text := differences(machine, about):
        sys.exit(f"bench: the run in {options.resume} is of another machine or build ({text}); start a new one: --out DIR")
    if more := [name for name in subjects if name not in (*OWN, *peers)]:
        sys.exit(f"bench: the run in {options.resume} is also against {' and '.join(more)}; name it again: --against")
    about.update(machine)
    return results


def _results(runs: Iterable[Run]) -> list[Result]:
    return [result for run in runs for result in run.results()]


def main() -> int:
    options = options_of()
    if options.list:
        print("\n".join(f"{group.name}  ({', '.join(group.drivers)})" for group in chosen(options, measures.groups([]))))
        return 0
    device = device_of(options)
    library = library_of(options)
    about = {"machine": "", **written.machine(device, library)}
    about["machine"] = about.get("gpu") or f"{about['cores']}-core {about['processor']}"
    paths: list[Path] = []

    def keep(found: list[Result], subjects: list[Subject]) -> None:
        """Writes the results after each batch, so that an interrupted run keeps them."""
        paths[:] = written.write(found, about, subjects, options.out)

    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="curb-bench-") as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        found = run(options, folder, device, library, about, keep)
    print(f"\n{written.table(found)}\n\nin {time.monotonic() - start:.0f} s")
    print(*(f"written: {path}" for path in paths), sep="\n")
    return 1 if any(is_failure(result, found) for result in found) else 0


def is_failure(result: Result, found: Sequence[Result]) -> bool:
    """Returns true if a lane of curb or bare failed. It may lack time, and a program its package, without which bare fails too."""
    if result.subject not in OWN or (result.figure and not result.lost) or result.why == NO_TIME:
        return False
    bare_ran = any(one.group is result.group and one.subject == BARE and one.figure for one in found)
    return not result.group.program or (bare_ran and result.subject != BARE)


if __name__ == "__main__":
    sys.exit(main())
