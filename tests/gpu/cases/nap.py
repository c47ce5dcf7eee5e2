"""Naps: programs leave the GPU by themselves while they are idle, and come back with their next call."""

from __future__ import annotations

import ctypes
import os
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import figure
from cases.suspend import curb_json, filled, judge_same
from lab import Case, Lab
from measuring.watch import MIB, Watch
from row import Row
from session import ProgramFailed, Session, Unavailable

_CAP = "24GiB"
_SMALL_CAP = "2GiB"
_IDLE_MS = 500
_IDLE = f"{_IDLE_MS}ms"
_TURN_STEPS = 10
_LEFT_MIB = 16.0
_LONGEST_PAUSE_S = 60.0
_WAKES = 5
# A wake-up may take at most the driver's own restore times _RATIO, plus _MORE_S.
_RATIO, _MORE_S = 1.05, 0.005
_TURNS = 20


def nap_case(
    trainer: str, naps: int, idle: str = _IDLE, pause_s: float = _LONGEST_PAUSE_S, package: str | None = None
) -> Case:
    """Training with pauses of at most `pause_s`, in each of which the process leaves the GPU: by curb's own copy, and the rest at
    once by the driver. Its losses and weights equal those of a run without curb."""

    def case(lab: Lab, row: Row) -> None:
        packages = lab.need(package or trainer)
        lab.built("bin/curb")
        count = max(3, naps // 10) if lab.quick else naps
        argv = lab.python("training/suspend_train.py", trainer, "small", "turns")
        with lab.bare(argv, f"{row.name} undisturbed", packages) as session:
            session.expect("training", 180)
            for _ in range(count):
                turn(session)
            undisturbed = end(session)
        job = lab.job(row.name, _SMALL_CAP, suspend={"idle": idle, "deep": "0s"})
        firsts = []
        with lab.capped(argv, job, packages) as session:
            session.expect("training", 180)
            before = session.held_mib()
            for _ in range(count):
                until_out(session, pause_s)
                firsts.append(turn(session)["first_s"])
            disturbed = end(session)
        row.goes_on = True
        taken = sum("a nap begins" in message for message in job.log.messages())
        row.expect(taken >= count, f"{taken} naps in {count} pauses")
        judge_same(row, disturbed, undisturbed)
        row.details = {"naps": taken, "held_mib": before, "first_call_s": firsts}
        row.add_note(
            f"{taken} naps of {before:,.0f} MiB, the GPU empty in each; the first call after one took "
            f"{statistics.median(firsts):.2f} s, at most {max(firsts):.2f}; {len(disturbed['losses'])} losses and the weights "
            f"{'compared' if row.wrong else 'identical'}"
        )

    return case


def _wake(lab: Lab, row: Row) -> None:
    """Compares the first call after a nap with the driver's restore in it. Measures in turns the restore of the same program
    without curb."""
    packages = lab.need("torch")
    lab.built("bin/curb")
    argv = lab.python("training/suspend_train.py", "torch", "large", "turns")
    job = lab.job(row.name, _CAP, suspend={"idle": _IDLE, "light": False})
    driver = Checkpoints()
    wakes, restores, outs = [], [], []
    with lab.bare(argv, f"{row.name} bare", packages) as bare, lab.capped(argv, job, packages) as session:
        for one in (bare, session):
            one.expect("training", 180)
        held = session.held_mib()
        for _ in range(2 if lab.quick else _WAKES):
            until_out(session)
            wakes.append(turn(session, steps=1)["first_s"])
            until_out(session)  # so that the two do not use the bus at the same time
            outs.append(driver.out(bare.pid))
            restores.append(driver.back(bare.pid))
        for one in (bare, session):
            turn(one, steps=1)
            end(one)
    row.goes_on = True
    ended = [message for message in job.log.messages() if "the nap has ended" in message]
    own = [_restore_of(message) for message in ended[: len(wakes)]]
    over = [wake - restore for wake, restore in zip(wakes, own, strict=True)]
    wake, restore = statistics.median(wakes), statistics.median(own)
    row.expect(
        statistics.median(over) <= restore * (_RATIO - 1) + _MORE_S,
        f"a wake-up took {statistics.median(over):.3f} s more than the driver's restore in it, {restore:.3f} s",
    )
    row.details = {"held_mib": held, "wakes_s": wakes, "of_them_restore_s": own, "bare_restores_s": restores, "out_bare": outs}
    row.add_note(
        f"{held:,.0f} MiB: the first call after a nap took {wake:.3f} s ({_spread(wakes)}); the driver's restore in it took "
        f"{restore:.3f} s ({_spread(own)}): ratio {wake / restore:.3f}, {statistics.median(over) * 1e3:.0f} ms more; restore and "
        f"unlock of the same program without curb took {statistics.median(restores):.3f} s ({_spread(restores)})"
    )


def _restore_of(message: str) -> float:
    """Returns the seconds of the driver's restore, from "… 8.85 GiB back on the device in 2.1 s (4.21 GiB/s)". Computes them from
    size and rate, which have more digits."""
    found = re.search(r"([\d.]+) ([MG])iB back on the device in [\d.]+ m?s \(([\d.]+) ([MG])iB/s\)", message)
    if not found:
        raise RuntimeError(f"this log line has no time of the restore: {message}")
    moved, unit, rate, rate_unit = found.groups()
    return float(moved) / float(rate) * {("M", "G"): 1 / 1024, ("G", "M"): 1024}.get((unit, rate_unit), 1)


def _pages(lab: Lab, row: Row) -> None:
    """Measures how much time page faults of host memory take in a checkpoint, with the kernel's huge pages always, on request and
    never."""
    packages = lab.need("torch")
    mode = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not os.access(mode, os.W_OK):
        raise Unavailable(f"{mode} cannot be written")
    driver = Checkpoints()
    found = re.search(r"\[(\w+)\]", mode.read_text())
    assert found
    try:
        for name in ("always", "madvise", "never"):
            mode.write_text(name)
            with lab.bare(lab.python("training/suspend_train.py", "torch", "large", "turns"), f"{row.name} {name}", packages) as session:
                session.expect("training", 180)
                held = session.held_mib()
                moves = []
                for _ in range(3):
                    before = _page_faults(session.pid)
                    out_s = driver.out(session.pid)
                    after = _page_faults(session.pid)
                    huge = _smaps(session.pid).get("AnonHugePages", 0)
                    moves.append(
                        {"out_s": out_s, "huge_mib": huge / 1024, "back_s": driver.back(session.pid)}
                        | {key: after[key] - before[key] for key in after}
                    )
                turn(session, steps=1)
                end(session)
            row.details[name] = moves
            best = min(moves, key=lambda move: move["out_s"])
            row.add_note(
                f"{name}: {held / 1024 / best['out_s']:.2f} GiB/s out, {held / 1024 / best['back_s']:.2f} back; "
                f"{best['faults']:,} faults, {best['system_s']:.2f} s of {best['out_s']:.2f} in the kernel"
            )
    finally:
        mode.write_text(found[1])
    row.goes_on = True


def _notebooks(lab: Lab, row: Row) -> None:
    """Two programs take turns in memory of which each needs 60 %, and leave by curb's own copy. A third program, without curb, holds
    the rest of the GPU. Then some turns more in which the driver moves them."""
    packages = lab.need("torch")
    lab.built("bin/curb")
    ways = {"curb": {}, "the driver": {"light": False}}
    said = []
    for way, suspend in ways.items():
        turns = 4 if lab.quick or way == "the driver" else _TURNS
        held, room, times = _take_turns(lab, row, way, {"when_others_wait": _IDLE, **suspend}, turns, packages)
        share = held / (held + room)
        row.expect(share > 0.5, f"a program needs only {share:.0%} of the memory: both fit")
        row.details[way] = {"held_mib": held, "room_mib": held + room, "first_call_s": times}
        said.append(f"{turns} turns by {way}: {statistics.median(times):.2f} s, at most {max(times):.2f}")
    row.goes_on = True
    row.add_note(
        f"two programs of {held:,.0f} MiB, {share:.0%} of {held + room:,.0f} MiB each, without an error. The first call of a turn, in "
        f"which one program leaves and the other comes back, took: {'; '.join(said)}; the losses are the same"
    )


def _take_turns(
    lab: Lab, row: Row, way: str, suspend: dict[str, object], turns: int, packages: dict[str, str]
) -> tuple[float, float, list[float]]:
    """Returns the MiB that a program holds, those that are free beside it, and the seconds of each turn's first call."""
    argv = lab.python("training/suspend_train.py", "torch", "large", "turns")
    one_job, other_job = (
        lab.job(f"{row.name} {way} {name}", "100%", {"wait": "120s"}, suspend=suspend) for name in ("one", "other")
    )
    times = []
    with lab.capped(argv, one_job, packages) as one:
        one.expect("training", 180)
        held = one.held_mib()
        with filled(lab, row, leave_mib=held * 2 / 3) as room, lab.capped(argv, other_job, packages) as other:
            other.expect("training", 180)
            for number in range(turns):
                times.append(turn((one, other)[number % 2], steps=_TURN_STEPS)["first_s"])
            ends = [end(session) for session in (one, other)]
    shorter = min(len(ended["losses"]) for ended in ends)
    row.expect(ends[0]["losses"][:shorter] == ends[1]["losses"][:shorter], "the losses differ")
    return held, room, times


def _kernel(lab: Lab, row: Row) -> None:
    """A Jupyter kernel under --nap runs cells with pauses. Between them it holds nothing of the GPU."""
    lab.need("torch")
    lab.need("ipykernel")
    lab.need("jupyter_client")
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import KernelManager

    job = lab.job(row.name, _CAP)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    options = ["--nap", "5s", "--policy", str(job.policy), "--prefix", str(job.folder), "--replace"]
    installed = lab.curb("kernelspec", "install", *options, "--", *command)
    row.expect(installed.returncode == 0, f"curb kernelspec install: {installed.stderr}")
    specs = KernelSpecManager(kernel_dirs=[str(job.folder / "share/jupyter/kernels")])
    manager = KernelManager(kernel_name="curb", kernel_spec_manager=specs)
    used_before = lab.device.used()
    manager.start_kernel(env=lab.environment({"CURB_LIBRARY": str(lab.library)}), cwd=str(job.folder))
    assert manager.provisioner and manager.provisioner.pid
    client = manager.blocking_client()
    cells = [
        "import torch; w = torch.randn(3, 8192, 8192, 10, device='cuda'); torch.cuda.synchronize(); print(w.sum().item())",
        "print(w.sum().item())",
        "x = w[0, :, :, 0]; y = (x @ x).sum().item(); print(y)",
        "print(w.sum().item(), (x @ x).sum().item() == y)",
    ]
    said, took, marks, left = [], [], [], []
    try:
        with Watch([lab.device], manager.provisioner.pid, used_before) as watch:
            start = time.monotonic()
            client.start_channels()
            client.wait_for_ready(timeout=60)
            for number, cell in enumerate(cells, 1):
                begun = time.monotonic()
                marks.append((begun - start, f"cell {number}"))
                said.append(_run(client, cell))
                took.append(time.monotonic() - begun)
                watch.falls_to(_LEFT_MIB, timeout_s=30)
                left.append(watch.held / MIB)
                time.sleep(3)
            end = time.monotonic()
            changes = watch.changes()
            peak = watch.peak / MIB
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    row.goes_on = True
    row.peak_mib = round(peak, 1)
    row.expect(said[0] == said[1], f"the sum changed in a nap: {said[0]!r}, {said[1]!r}")
    row.expect(said[3].endswith("True") and said[3].split()[0] == said[0], f"the results changed in a nap: {said}")
    row.expect(max(left) <= _LEFT_MIB, f"{max(left):.0f} MiB were still held 30 s after a cell")
    row.details = {"cells_s": took, "said": said, "left_mib": left}
    held = [(at - start, bytes_ / 2**30) for at, bytes_ in changes]
    title = "GPU memory of a notebook under curb run --nap 5s"
    row.figures["nap"] = figure.held_alone(title, held, marks, end - start)
    row.add_note(
        f"{len(cells)} cells of a Jupyter kernel: {row.peak_mib:,.0f} MiB at most, 0 between cells; the cells took "
        + ", ".join(f"{seconds:.1f}" for seconds in took)
        + " s, mostly the wake-ups"
    )


def _run(client: Any, cell: str) -> str:
    """Runs a cell and returns its output. Raises ProgramFailed with its traceback."""
    printed: list[str] = []

    def collect(message: dict[str, Any]) -> None:
        if message["header"]["msg_type"] == "stream":
            printed.append(message["content"]["text"])

    reply = client.execute_interactive(cell, output_hook=collect, timeout=120)
    if reply["content"]["status"] != "ok":
        raise ProgramFailed("\n".join(reply["content"]["traceback"]))
    return "".join(printed).strip()


def turn(session: Session, steps: int = _TURN_STEPS) -> dict[str, Any]:
    session.tell(f"train {steps}")
    return session.expect("trained", 180)


def end(session: Session) -> dict[str, Any]:
    session.tell("end")
    done = session.expect("done", 120)
    time.sleep(2 * _IDLE_MS / 1e3)  # so that the program is in a nap when it ends
    session.end()
    return done


def until_out(session: Session, pause_s: float = _LONGEST_PAUSE_S) -> None:
    """Waits until the process holds nothing of the GPU. Raises ProgramFailed."""
    if session.watch.falls_to(_LEFT_MIB, pause_s) is None:
        held = f"{session.watch.held / MIB:,.0f} MiB are held after a pause of {pause_s:.0f} s"
        raise ProgramFailed(f"{held}{session.tail()}")


def _spread(seconds: list[float]) -> str:
    return f"{min(seconds):.3f} to {max(seconds):.3f}"


class Checkpoints:
    """The driver's calls that checkpoint and restore another process."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._driver.cuInit(0)

    def out(self, pid: int) -> float:
        """Moves the process to host memory. Returns the seconds of the checkpoint, without those of the lock."""
        self._call("Lock", pid)
        return self._call("Checkpoint", pid)

    def back(self, pid: int) -> float:
        """Moves it back. Returns the seconds of restore and unlock."""
        return self._call("Restore", pid) + self._call("Unlock", pid)

    def _call(self, what: str, pid: int) -> float:
        begin = time.monotonic()
        status = getattr(self._driver, f"cuCheckpointProcess{what}")(pid, None)
        if status != 0:
            raise RuntimeError(f"cuCheckpointProcess{what} returned {status}")
        return time.monotonic() - begin


def _page_faults(pid: int) -> dict[str, float]:
    """Returns the process's minor page faults, and its seconds in user mode and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    tick = os.sysconf("SC_CLK_TCK")
    return {"faults": int(fields[7]), "user_s": int(fields[11]) / tick, "system_s": int(fields[12]) / tick}


def _smaps(pid: int) -> dict[str, int]:
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return {words[0].rstrip(":"): int(words[1]) for words in lines}


def _by_command(lab: Lab, row: Row) -> None:
    """`curb suspend --until-used`: a nap by command, which the next call ends."""
    packages = lab.need("torch")
    with lab.capped(lab.python("training/suspend_train.py", "torch", "small", "turns"), lab.job(row.name, _SMALL_CAP), packages) as session:
        session.expect("training", 180)
        answer = curb_json(lab, "suspend", session, "--until-used")
        until_out(session)
        first = turn(session)["first_s"]
        end(session)
    row.goes_on = True
    row.expect(answer["status"] == 0, f"curb suspend --until-used: {answer}")
    row.details = {"answer": answer, "first_call_s": first}
    row.add_note(f"out by command, back with the next call in {first:.2f} s")


def shared_case(way: str) -> Case:
    """Processes that send each other CUDA tensors (CUDA IPC) and nap between two, by curb's own copy. The sums are those of a run
    without curb."""

    def case(lab: Lab, row: Row) -> None:
        packages = lab.need("torch")
        rounds = 3 if lab.quick else 10
        argv = lab.python("training/sharing_torch.py", way, str(rounds), "2")
        env = packages | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        with lab.bare(argv, f"{row.name} undisturbed", env) as session:
            undisturbed = session.expect("shared", 600)["sums"]
            session.finish()
        job = lab.job(row.name, None, suspend={"idle": _IDLE})
        with lab.capped(argv, job, env) as session:
            disturbed = session.expect("shared", 600)["sums"]
            session.finish()
        row.goes_on = True
        messages = job.log.messages()
        taken = sum("a nap begins" in message for message in messages)
        refused = [message for message in messages if "cuIpc" in message]
        row.expect(taken >= rounds, f"{taken} naps in {rounds} rounds")
        row.expect(not refused, f"{refused[:1]}")
        row.expect(disturbed == undisturbed, "the sums differ from those of a run without curb")
        row.details = {"naps": taken, "sums": len(disturbed)}
        row.add_note(f"{rounds} rounds with {taken} naps; {len(disturbed)} sums {'compared' if row.wrong else 'identical'}")

    return case


# The name of a case, a trainer of programs/training/libraries.py, and the package that it needs.
_LIBRARIES = (
    ("PyTorch, expandable segments", "expandable", "torch"),
    ("PyTorch, CUDA graph", "graphed", "torch"),
    ("torch.compile", "compiled", "triton"),
    ("torchvision, mixed precision", "torchvision", "torchvision"),
    ("torchaudio", "torchaudio", "torchaudio"),
    ("torchdiffeq", "torchdiffeq", "torchdiffeq"),
    ("Transformers and Accelerate", "transformers", "transformers"),
    ("Lightning Fabric", "lightning", "lightning_fabric"),
    ("GPyTorch", "gpytorch", "gpytorch"),
    ("NumPyro", "numpyro", "numpyro"),
    ("Triton", "triton", "triton"),
    ("CuPy and Numba", "cupy_numba", "numba"),
)

NAP: dict[str, Case] = {
    "nap, torch": nap_case("torch", 10),
    "nap, PyTorch Geometric": nap_case("torch_geometric", 5, "2s", 6),
    "nap, jax": nap_case("jax", 30),
    "nap, tensorflow": nap_case("tensorflow", 30),
    "nap, cupy": nap_case("cupy", 10),
    "nap, numba": nap_case("numba", 10),
    **{f"nap, {name}": nap_case(trainer, 3, package=package) for name, trainer, package in _LIBRARIES},
    "nap, torch.multiprocessing": shared_case("queue"),
    "nap, DataLoader with CUDA tensors": shared_case("loader"),
    "nap, by command": _by_command,
    "nap, two notebooks": _notebooks,
    "nap, a Jupyter kernel": _kernel,
    "nap, wake-up": _wake,
    "nap, host pages": _pages,
}
