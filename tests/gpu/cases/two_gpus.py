"""A machine with two GPUs: a cap for each GPU, by every kind of key and in either order; memory of one device while a context of
the other is current; training on both, also under a cap of the job for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from cases.frameworks.training import judge_losses
from cases.job import ranks
from cases.suspend import curb_json, status_of
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
_VISIBLE = {"CUDA_VISIBLE_DEVICES": "0,1"}
_CONTEXT_MIB = 900
"""What a process holds of a device at most whose memory is out."""


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
    started = lab.capped(lab.python("two_devices.py", "other"), job, _VISIBLE, devices)
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
    with lab.bare(argv, "ddp bare", _VISIBLE) as session:
        bare = session.expect("trained", 180)
        session.finish(60)
    with _watching(row, lab.capped(argv, lab.job(row.name, CAP), _VISIBLE, devices), {0: CAP_MIB, 1: CAP_MIB}) as session:
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
    with lab.bare(argv, f"{row.name} bare", _VISIBLE, devices) as session:
        bare = session.expect("trained", 180)
        session.finish(60)
    caps = {f"nvml:{index}": {"job_cap": f"{cap}MiB", "growth": {"wait": "60s"}} for index, cap in _JOB_CAPS_MIB.items()}
    with row.watching(lab.run_by_curb(argv, lab.job(row.name, None, gpu=caps), _VISIBLE, devices), None) as capped_session:
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


def moves(lab: Lab, row: Row) -> None:
    """curb moves what a process holds of two GPUs, and brings it back."""
    devices = _both()
    lab.built("bin/curb")
    policy = lab.job(row.name, "100%", suspend={"idle": "2m", "deep": "never"})
    rates = []
    with lab.capped(lab.python("moving.py", "150", "20", "2"), policy, _VISIBLE, devices) as session:
        session.expect("ready", 60)
        for _ in range(3):
            answer = curb_json(lab, "suspend", session, "--until-used")
            row.expect(answer["status"] == 0, f"curb suspend: {answer}")
            session.watch.settle()
            for index in (0, 1):
                held = session.watch.held_on[index] / MIB
                row.expect(held < _CONTEXT_MIB, f"it holds {held:,.0f} MiB of device {index} while it is out")
            session.tell("check")
            wrong = session.expect("checked", 120)["wrong"]
            row.expect(wrong == 0, f"{wrong} blocks changed in a move")
            moved = status_of(lab, session)["nap"]["light"]
            out, back = (moved["bytes"] / 2**30 / moved[way] for way in ("out_seconds", "back_seconds"))
            rates.append(f"{out:.1f} out, {back:.1f} back")
            session.tell("change")
            session.expect("changed", 60)
        session.end()
    row.goes_on = True
    row.add_note(f"GiB/s of 2.9 GiB of each of two GPUs: {'; '.join(rates)}; each byte right")


def turns(lab: Lab, row: Row) -> None:
    """A process on both GPUs and one on the second take turns there; one on the first GPU, where all fit, is not disturbed."""
    devices = _both()
    lab.built("bin/curb")
    with ExitStack() as ends:
        for index, left_mib in enumerate((14_000, 9_000)):
            filler = ends.enter_context(lab.bare(lab.python("grab.py"), f"{row.name} {index}", {"CUDA_VISIBLE_DEVICES": str(index)}, devices))
            filler.expect("ready", 60)
            filler.tell(f"take {int((devices[index].free() / MIB - left_mib) // 256)} 256")
            row.expect(not filler.expect("taken", 60)["refused"], "the device could not be filled")
        sessions = {}
        for name, count, visible in (("both", "2", "0,1"), ("second", "1", "1"), ("first", "1", "0")):
            job_of = lab.job(f"{row.name} {name}", "100%", suspend={"turn": "2s"})
            argv, env = lab.python("moving.py", "10", "512", count), {"CUDA_VISIBLE_DEVICES": visible}
            sessions[name] = ends.enter_context(lab.capped(argv, job_of, env, devices))
            sessions[name].expect("ready", 60)
        for session in sessions.values():
            session.tell("work 20")
        worked = {name: session.expect("worked", 60) for name, session in sessions.items()}
        status = {name: status_of(lab, session)["turn"] for name, session in sessions.items()}
        for name, session in sessions.items():
            session.tell("check")
            wrong = session.expect("checked", 180)["wrong"]
            row.expect(wrong == 0, f"{name}: {wrong} blocks changed")
            session.end()
    row.goes_on = True
    row.details = {"worked": worked, "turns": status}
    for name in ("both", "second"):
        row.expect(status[name]["count"] >= 3, f"{name} took no turns: {status[name]}")
    row.expect(status["first"]["moved_ms"] == 0, f"the process on the first GPU was moved: {status['first']}")
    row.expect(worked["first"]["longest_s"] < 1, f"the process on the first GPU waited for {worked['first']['longest_s']:.2f} s")
    row.add_note(
        f"turns of 2s for 20 s: {status['both']['count']} of the process on both GPUs, {status['second']['count']} of that on the second; the one on "
        f"the first GPU waited for {worked['first']['longest_s']:.2f} s at most; each byte right"
    )


TWO_GPUS: dict[str, Case] = {
    "two GPUs: cuda:N": caps_case("cuda", (0, 1), small=0),
    "two GPUs: cuda:N, reordered": caps_case("cuda", (1, 0), small=1),
    "two GPUs: nvml:N, reordered": caps_case("nvml", (1, 0), small=0),
    "two GPUs: UUIDs, reordered": caps_case("uuid", (1, 0), small=0),
    "two GPUs: memory of the other device": other_device,
    "two GPUs: moves": moves,
    "two GPUs: turns": turns,
    "two GPUs: DDP over NCCL": distributed,
    "two GPUs: DDP under a job's cap": job,
}
