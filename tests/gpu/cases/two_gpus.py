"""A machine with two GPUs: a cap for each, by every kind of key and in either order; training on both; memory of the one
device while a context of the other is current.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from books import REPORT_ONLY, NoBooks, compare
from lab import Case, Lab, Unavailable
from nvml import Device, NvmlError
from row import CAP, CAP_MIB, GRANULE_MIB, UNUSED_MIB, Row
from session import Event, Job, Session
from watch import MIB

_SMALL_MIB, _LARGE_MIB = 4096, 6144
_STEPS = 50

Keys = Callable[[list[Device]], list[str]]
"""The policy's keys for the device of the small cap and for that of the large one."""


def _both() -> list[Device]:
    try:
        return [Device(0), Device(1)]
    except NvmlError:
        raise Unavailable("one GPU") from None


@contextmanager
def _watching(row: Row, session: Session, caps_mib: dict[int, int]) -> Iterator[Session]:
    """No process may hold more of a device than its cap there. `caps_mib` by NVML's index."""
    try:
        with row.watching(session, None):
            yield session
    finally:
        peaks = {index: session.watch.peak_on(index) / MIB for index in caps_mib}
        row.details["peaks_mib"] = {index: round(peak, 1) for index, peak in peaks.items()}
        for index, cap_mib in caps_mib.items():
            peak = peaks[index]
            row.expect(peak > 0, f"NVML never showed the process on device {index}")
            row.expect(peak <= cap_mib + GRANULE_MIB, f"held {peak:,.0f} MiB of device {index} under a cap of {cap_mib:,}")


def _caps(names: list[str]) -> dict[str, dict[str, str]]:
    return {names[0]: {"cap": f"{_SMALL_MIB}MiB"}, names[1]: {"cap": f"{_LARGE_MIB}MiB"}}


def caps_case(keys: Keys, order: tuple[int, int], small: int) -> Case:
    """`order`: CUDA_VISIBLE_DEVICES. `small`: NVML's index of the device that the keys give the small cap."""

    def case(lab: Lab, row: Row) -> None:
        devices = _both()
        caps_mib = {small: _SMALL_MIB, 1 - small: _LARGE_MIB}
        job = lab.job(row.name, CAP, gpu=_caps(keys(devices)), **REPORT_ONLY)
        env = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, order))}
        with _watching(row, lab.capped(lab.python("two_devices_fill.py"), job, env, devices), caps_mib) as session:
            full = session.expect("full", 60)
            session.watch.settle()
            held = {index: session.watch.held_on[index] / MIB for index in order}
            for ordinal, index in enumerate(order):
                _books(row, session, job, ordinal, index)
            session.tell("free")
            session.expect("freed", 30)
            session.watch.settle()
            left = {index: session.watch.held_on[index] / MIB for index in order}
            session.end()
        row.goes_on = True
        row.details |= {"pieces": full["pieces"], "held_mib": held, "left_mib": left}
        for ordinal, index in enumerate(order):
            cap_mib = caps_mib[index]
            row.expect(
                full["total_mib"][ordinal] == cap_mib,
                f"cuda:{ordinal} is told {full['total_mib'][ordinal]} MiB in all, not {cap_mib}",
            )
            row.expect(
                held[index] >= cap_mib - UNUSED_MIB,
                f"cuda:{ordinal} was refused with only {held[index]:,.0f} of {cap_mib:,} MiB held",
            )
            row.expect(
                left[index] < held[index] / 2, f"cuda:{ordinal} still holds {left[index]:,.0f} MiB after the frees"
            )
        row.add_note(
            ", ".join(
                f"cuda:{o} is nvml:{i}, peak {row.details['peaks_mib'][i]:,.0f} of {caps_mib[i]:,}"
                for o, i in enumerate(order)
            )
        )

    return case


def _books(row: Row, session: Session, job: Job, ordinal: int, index: int) -> None:
    device = f"cuda:{ordinal}"
    try:
        one = compare(session, job.log, device, index)
    except NoBooks as missing:
        row.expect(False, str(missing))
        return
    row.details.setdefault("books", {})[device] = one.line
    row.expect(one.agrees, one.said)


def other_device(lab: Lab, row: Row) -> None:
    """Memory of cuda:1 under a context of cuda:0: charged to cuda:1, by every way and every time anew."""
    devices = _both()
    job = lab.job(row.name, CAP, gpu=_caps(["cuda:0", "cuda:1"]))
    env = {"CUDA_VISIBLE_DEVICES": "0,1"}
    pieces = {}
    started = lab.capped(lab.python("other_device.py"), job, env, devices)
    with _watching(row, started, {0: _SMALL_MIB, 1: _LARGE_MIB}) as session:
        session.expect("warm", 30)
        session.watch.settle()
        least = int((_LARGE_MIB - UNUSED_MIB - session.watch.held_on[1] / MIB) / 256)
        session.tell("go on")
        for way in ("plain", "pool", "created"):
            said = session.expect(way, 30)
            pieces[way] = said["pieces"]
            if way == "plain":
                row.expect(said["copied"], "the copy from one device to the other is wrong")
            session.watch.settle()
            session.tell("go on")
        session.expect("done", 30)
        session.end()
    row.goes_on = True
    row.details["pieces"] = pieces
    for way, served in pieces.items():
        row.expect(
            served >= least, f"{way}: only {served} pieces of 256 MiB, {least} have room: frees were credited elsewhere"
        )
    row.add_note(", ".join(f"{way}: {served} pieces" for way, served in pieces.items()) + "; peer copy right")


def distributed(lab: Lab, row: Row) -> None:
    """DistributedDataParallel on both, bare and capped: the same losses, each process within its cap."""
    lab.need("torch")
    devices = _both()
    argv = lab.python("ddp.py", str(_STEPS))
    env = {"CUDA_VISIBLE_DEVICES": "0,1"}
    with lab.bare(argv, "ddp bare", env) as session:
        bare = session.expect("done", 180)
        session.finish(60)
    with _watching(row, lab.capped(argv, lab.job(row.name, CAP), env, devices), {0: CAP_MIB, 1: CAP_MIB}) as session:
        capped = session.expect("done", 180)
        session.finish(60)
    row.goes_on = True
    _compare_losses(row, bare, capped)


def _compare_losses(row: Row, bare: Event, capped: Event) -> None:
    first = bare["losses"][0]
    row.expect(first[-1] < first[0], "the loss did not fall: nothing was trained")
    row.expect(capped["losses"] == bare["losses"], "the losses differ from those without curb")
    row.details |= {
        "losses": [first[0], first[-1]],
        "bare_step_ms": bare["step_ms"],
        "capped_step_ms": capped["step_ms"],
    }
    same = "identical" if capped["losses"] == bare["losses"] else "DIFFERENT"
    row.add_note(
        f"{_STEPS} losses of 2 ranks {same}, {first[0]:.3f} -> {first[-1]:.3f}; "
        f"{capped['step_ms']:.2f} ms a step against {bare['step_ms']:.2f} bare; "
        f"peaks {', '.join(f'{peak:,.0f} MiB' for peak in row.details['peaks_mib'].values())} of {CAP_MIB:,} each"
    )


def _ordinals(_: list[Device]) -> list[str]:
    return ["cuda:0", "cuda:1"]


def _indices(_: list[Device]) -> list[str]:
    return ["nvml:0", "nvml:1"]


def _uuids(devices: list[Device]) -> list[str]:
    return [device.uuid() for device in devices]


TWO_GPUS: dict[str, Case] = {
    "two GPUs: cuda:N": caps_case(_ordinals, (0, 1), small=0),
    "two GPUs: cuda:N, reordered": caps_case(_ordinals, (1, 0), small=1),
    "two GPUs: nvml:N, reordered": caps_case(_indices, (1, 0), small=0),
    "two GPUs: UUIDs, reordered": caps_case(_uuids, (1, 0), small=0),
    "two GPUs: memory of the other device": other_device,
    "two GPUs: DDP over NCCL": distributed,
}
