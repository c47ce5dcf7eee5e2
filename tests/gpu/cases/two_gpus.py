"""A machine with two GPUs: a cap for each GPU, by every kind of key and in either order; memory of one device while a context of
the other is current; training on both, also under a cap of the job for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cases.frameworks.training import judge_losses
from cases.job import ranks
from lab import Case, Lab
from measuring.books import REPORT_ONLY, NoBooks, compare
from measuring.nvml import Device, NvmlError
from measuring.watch import MIB
from row import CAP, CAP_MIB, GRANULE_MIB, UNUSED_MIB, Row
from session import Job, Session, Unavailable

_SMALL_MIB, _LARGE_MIB = 4096, 6144
_STEPS = 50
_JOB_CAPS_MIB = {0: 7168, 1: 8192}
_RANK_MIB = 4096


def _both() -> list[Device]:
    try:
        return [Device(0), Device(1)]
    except NvmlError:
        raise Unavailable("this machine has only one GPU") from None


@contextmanager
def _watching(row: Row, session: Session, caps_mib: dict[int, int]) -> Iterator[Session]:
    """Enters the session, and judges at the end that no process held more of a device than its cap. `caps_mib`: by NVML's
    index."""
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


def caps_case(keys: str, order: tuple[int, int], small: int) -> Case:
    """`keys`: the kind of the policy's keys. `order`: CUDA_VISIBLE_DEVICES. `small`: NVML's index of the device with the small
    cap."""

    def case(lab: Lab, row: Row) -> None:
        devices = _both()
        names = [device.uuid() for device in devices] if keys == "uuid" else [f"{keys}:0", f"{keys}:1"]
        caps_mib = {small: _SMALL_MIB, 1 - small: _LARGE_MIB}
        job = lab.job(row.name, CAP, gpu=_caps(names), **REPORT_ONLY)
        env = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, order))}
        with _watching(row, lab.capped(lab.python("two_devices.py", "fill"), job, env, devices), caps_mib) as session:
            full = session.expect("full", 60)
            session.watch.settle()
            held = {index: session.watch.held_on[index] / MIB for index in order}
            for ordinal, index in enumerate(order):
                _books(row, session, job, f"cuda:{ordinal}", index)
            session.tell("free")
            session.expect("freed", 30)
            session.watch.settle()
            left = {index: session.watch.held_on[index] / MIB for index in order}
            session.end()
        row.goes_on = True
        row.details |= {"pieces": full["pieces"], "held_mib": held, "left_mib": left}
        for ordinal, index in enumerate(order):
            device, cap_mib, total = f"cuda:{ordinal}", caps_mib[index], full["total_mib"][ordinal]
            row.expect(total == cap_mib, f"{device} shows {total} MiB in all, not {cap_mib}")
            few = f"{device} was refused with only {held[index]:,.0f} of {cap_mib:,} MiB held"
            row.expect(held[index] >= cap_mib - UNUSED_MIB, few)
            row.expect(left[index] < held[index] / 2, f"{device} still holds {left[index]:,.0f} MiB after the frees")
            row.add_note(f"{device} is nvml:{index}, peak {row.details['peaks_mib'][index]:,.0f} of {cap_mib:,}")

    return case


def _books(row: Row, session: Session, job: Job, device: str, index: int) -> None:
    try:
        one = compare(session, job.log, device, index)
    except NoBooks as missing:
        row.expect(False, str(missing))
        return
    row.details.setdefault("books", {})[device] = one.line
    row.expect(one.agrees, one.text)


def other_device(lab: Lab, row: Row) -> None:
    """curb charges memory of cuda:1 to cuda:1, and credits it there, while a context of cuda:0 is current. Three ways."""
    devices = _both()
    job = lab.job(row.name, CAP, gpu=_caps(["cuda:0", "cuda:1"]))
    env = {"CUDA_VISIBLE_DEVICES": "0,1"}
    started = lab.capped(lab.python("two_devices.py", "other"), job, env, devices)
    with _watching(row, started, {0: _SMALL_MIB, 1: _LARGE_MIB}) as session:
        session.expect("warm", 30)
        session.watch.settle()
        least = int((_LARGE_MIB - UNUSED_MIB - session.watch.held_on[1] / MIB) / 256)
        session.tell("go on")
        for way in ("plain", "pool", "created"):
            said = session.expect(way, 30)
            few = f"{way}: only {said['pieces']} pieces of 256 MiB, {least} fit: frees were credited to another device"
            row.expect(said["pieces"] >= least, few)
            row.expect(said.get("copied", True), "the copy from one device to the other is wrong")
            row.add_note(f"{way}: {said['pieces']} pieces")
            session.watch.settle()
            session.tell("go on")
        session.expect("done", 30)
        session.end()
    row.goes_on = True


def distributed(lab: Lab, row: Row) -> None:
    """DistributedDataParallel on both GPUs, bare and capped, has the same losses, and each process keeps to its cap."""
    lab.need("torch")
    devices = _both()
    argv = lab.python("matrix/matrix_ranks.py", str(_STEPS), "nccl:2")
    env = {"CUDA_VISIBLE_DEVICES": "0,1"}
    with lab.bare(argv, "ddp bare", env) as session:
        bare = session.expect("trained", 180)
        session.finish(60)
    with _watching(row, lab.capped(argv, lab.job(row.name, CAP), env, devices), {0: CAP_MIB, 1: CAP_MIB}) as session:
        capped = session.expect("trained", 180)
        session.finish(60)
    row.goes_on = True
    same = [judge_losses(row, [{"losses": run["losses"][rank]} for run in (bare, capped)]) for rank in range(2)]
    peaks = ", ".join(f"{peak:,.0f} MiB" for peak in row.details["peaks_mib"].values())
    row.add_note(f"{_STEPS} losses of 2 ranks {' and '.join(same)}; peaks {peaks} of {CAP_MIB:,} each")


def job(lab: Lab, row: Row) -> None:
    """DistributedDataParallel on both GPUs under a cap of the job for each. Both ranks fill a cache on both GPUs, and the caches of
    the two do not fit under either cap."""
    lab.need("torch")
    lab.built("bin/curb")
    devices = _both()
    argv = ranks(2, _RANK_MIB, "nccl")
    env = {"CUDA_VISIBLE_DEVICES": "0,1"}
    with lab.bare(argv, f"{row.name} bare", env, devices) as session:
        bare = session.expect("trained", 180)
        session.finish(60)
    caps = {f"nvml:{index}": {"job_cap": f"{cap}MiB", "growth": {"wait": "60s"}} for index, cap in _JOB_CAPS_MIB.items()}
    with row.watching(lab.run_by_curb(argv, lab.job(row.name, None, gpu=caps), env, devices), None) as capped_session:
        capped = capped_session.expect("trained", 180)
        capped_session.finish(60)
    row.goes_on = True
    row.expect(bare["losses"] == capped["losses"], "the losses of the ranks differ")
    same = judge_losses(row, [{"losses": run["losses"][0]} for run in (bare, capped)])
    for index, cap_mib in _JOB_CAPS_MIB.items():
        alone, held = (round(one.watch.most_on[index] / MIB, 1) for one in (session, capped_session))
        row.details[f"nvml:{index}"] = {"bare_peak_mib": alone, "peak_mib": held}
        little = f"without curb they held {alone:,.0f} MiB of device {index}, less than the cap: nothing was tested"
        row.expect(alone > cap_mib, little)
        row.expect(0 < held <= cap_mib + GRANULE_MIB, f"held {held:,.0f} MiB of device {index} under a cap of {cap_mib:,}")
        row.add_note(f"nvml:{index}: both held {held:,.0f} of {cap_mib:,} MiB together at most, {alone:,.0f} without curb")
    row.add_note(f"losses {same}")


TWO_GPUS: dict[str, Case] = {
    "two GPUs: cuda:N": caps_case("cuda", (0, 1), small=0),
    "two GPUs: cuda:N, reordered": caps_case("cuda", (1, 0), small=1),
    "two GPUs: nvml:N, reordered": caps_case("nvml", (1, 0), small=0),
    "two GPUs: UUIDs, reordered": caps_case("uuid", (1, 0), small=0),
    "two GPUs: memory of the other device": other_device,
    "two GPUs: DDP over NCCL": distributed,
    "two GPUs: DDP under a job's cap": job,
}
