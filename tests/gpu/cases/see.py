"""What `curb ps`, `curb metrics`, `curb cap` and `curb report` say and do, beside nvidia-smi and NVML: capped jobs of three
frameworks and one without curb, at work at the same time on one GPU.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from books import Comparison
from lab import Case, Lab, Unavailable
from machine import ROOT
from row import Row
from session import Job, Session
from watch import MIB

_CAPS = {"torch": "8GiB", "jax": "6GiB", "tensorflow": "7GiB", "cupy": "5GiB"}
_NAMES = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow", "cupy": "CuPy"}
_APART = 0.01
"""What curb's figure and nvidia-smi's may differ by."""
_LOOKS = 10
_WITHIN_MS = 1000.0
_TRACE = "curb.trace.json"


def ps(lab: Lab, row: Row) -> None:
    """Figures taken while the programs compute; nvidia-smi counts in whole MiB."""
    smi = shutil.which("nvidia-smi")
    if not smi:
        raise Unavailable("nvidia-smi is not here")
    lab.need("torch")
    packages: dict[str, dict[str, str]] = {}
    for framework in _CAPS:
        try:
            packages[framework] = lab.need(framework)
        except Unavailable as why:
            row.add_note(f"without {_NAMES[framework]}: {why}")
    with _at_work(lab, row.name, packages) as jobs:
        bare = jobs.pop("bare")
        looks = []
        took = []
        for _ in range(_LOOKS):
            start = time.monotonic()
            ours = _json(lab, "ps")
            took.append((time.monotonic() - start) * 1e3)
            looks.append((ours, _nvidia_smi(smi)))
            time.sleep(0.2)
        worst = 0.0
        for ours, theirs in looks:
            said = _by_pid(ours)
            for name, session in jobs.items():
                mib = theirs.get(session.pid)
                held = (said.get(session.pid, {}).get("books") or {}).get("held")
                if mib is None or held is None:
                    row.expect(False, f"{name}, {session.pid}: nvidia-smi says {mib} MiB, curb ps {held} bytes")
                    continue
                apart = abs(held / MIB - mib) / mib
                worst = max(worst, apart)
                row.expect(apart <= _APART, f"{name}: curb ps says {held / MIB:,.0f} MiB, nvidia-smi {mib:,} MiB")
            row.expect(
                said.get(bare.pid, {}).get("nvml") == theirs.get(bare.pid, 0) * MIB,
                f"without curb: curb ps says {said.get(bare.pid)}, nvidia-smi {theirs.get(bare.pid)} MiB",
            )
        _metrics(lab, row, jobs)
        table = _curb(lab, row, "ps")
        detail = _curb(lab, row, "ps", str(jobs["torch"].pid))
        smi_table = subprocess.run([smi], capture_output=True, text=True, timeout=30, check=False).stdout
    row.goes_on = True
    row.details = {"worst": worst, "took_ms": took}
    row.add_note(
        f"{_LOOKS} looks at {', '.join(_NAMES[framework] for framework in packages)} at work: curb ps and nvidia-smi differ by {worst:.2%} at the most; "
        f"curb ps took {sorted(took)[len(took) // 2]:.0f} ms (median)"
    )
    row.section = [
        *("```", "$ curb ps", *_plain(table), "```", ""),
        *("```", "$ nvidia-smi", *smi_table.splitlines()[-14:], "```", ""),
        *("```", "$ curb ps PID", *_plain(detail), "```"),
    ]


def cap_live(lab: Lab, row: Row) -> None:
    """Lowers the cap of a program at work below what it caches, and takes that back."""
    lab.need("torch")
    job = lab.job(row.name, "8GiB")
    with row.watching(lab.capped(lab.python("release_states.py", "torch"), job), None) as session:
        _compute(session)
        held = session.watch.settle() / MIB
        asked = time.monotonic()
        answer = _json(lab, "cap", str(session.pid), "2GiB")
        answered = (time.monotonic() - asked) * 1e3
        under = _until(session, 2048)
        row.expect(under is not None, f"{session.watch.held / MIB:,.0f} MiB are still held 5 s after curb cap PID 2GiB")
        ms = ((under or asked) - asked) * 1e3
        row.expect(ms <= _WITHIN_MS, f"under the new cap after {ms:.0f} ms, not within 1 s")
        low = session.watch.settle() / MIB
        reset = _json(lab, "cap", str(session.pid), "--reset")
        session.tell("stop")
        row.expect(session.expect("stopped", 30)["correct"], "computes wrongly after its cap was lowered")
        session.end()
    row.goes_on = True
    row.released_mib, row.released_ms = round(held - low), round(ms, 1)
    row.details = {"answer": answer, "reset": reset, "answered_ms": answered}
    row.add_note(
        f"{held:,.0f} MiB held under 8 GiB; curb cap PID 2GiB answered in {answered:.0f} ms, {low:,.0f} MiB after {ms:.0f} ms"
    )


def traced(lab: Lab, row: Row) -> None:
    """A training run recorded: the same losses, and what it costs. Then one that grows, waits and is asked for memory, for a
    report whose peak is the one NVML saw."""
    lab.need("torch")
    steps = 200 if lab.quick else 300
    argv = lab.python("train.py", str(steps))
    speeds: dict[str, list[float]] = {"capped": [], "traced": []}
    losses: list[Any] = []
    for turn in range(1 if lab.quick else 3):
        for kind, found in speeds.items():
            with lab.capped(argv, _traced_job(lab, f"{row.name} {kind} {turn}", kind == "traced")) as session:
                session.expect("training", 120)
                done = session.expect("done", 120)
                found.append(done["steps_per_s"])
                losses.append(done["losses"])
                session.end()
    growth = {"start": "1GiB", "step": "512MiB", "every": "1s", "wait": "10s"}
    job = _traced_job(lab, f"{row.name} shown", True, growth)
    with row.watching(lab.capped(argv, job)) as session:
        session.expect("training", 120)
        time.sleep(2)
        session.send()
        losses.append(session.expect("done", 120)["losses"])
        time.sleep(1)
        session.send()
        seen = len(job.log.messages())
        time.sleep(1)
        status = _json(lab, "ps", str(session.pid))
        session.end()
        peak = session.watch.peak / MIB
    row.expect(seen > 0, "curb logged nothing")
    same = all(one == losses[0] for one in losses)
    row.expect(same, "the losses differ from those without a trace")
    trace = job.folder / _TRACE
    page, picture = trace.with_suffix(".html"), trace.with_suffix(".svg")
    summary = _json(lab, "report", str(trace))
    told = Comparison(round(summary["gpus"][0]["peak"]["bytes"] / MIB, 1), round(peak, 1), "the peak of curb report")
    row.expect(told.agrees, told.said)
    _curb(lab, row, "report", str(trace), "-o", str(page))
    _curb(lab, row, "report", str(trace), "-o", str(picture))
    text = _curb(lab, row, "report", str(trace))
    replayed = _curb(lab, row, "replay", str(trace), "--cap", "1GiB")
    ratio = sorted(a / b for a, b in zip(speeds["traced"], speeds["capped"], strict=True))
    row.goes_on = True
    row.details = {"summary": summary, "status": status, "speeds": speeds, "bytes": trace.stat().st_size}
    row.figures = {"training": _here(picture.read_text()), "training.html": _here(page.read_text())}
    row.section = ["```", "$ curb report curb.trace.json", *_plain(text), "", "$ curb replay curb.trace.json --cap 1GiB"]
    row.section += [*_plain(replayed), "```"]
    row.add_note(
        f"{steps} losses {'identical' if same else 'DIFFERENT'}; steps/s with a trace {ratio[len(ratio) // 2]:.3f} of those "
        f"without ({ratio[0]:.3f} to {ratio[-1]:.3f}); NVML's peak {peak:,.0f} MiB"
    )


def _traced_job(lab: Lab, name: str, with_trace: bool, growth: dict[str, str] | None = None) -> Job:
    trace = {"trace": {"file": str(lab.folder_of(name) / _TRACE)}} if with_trace else {}
    return lab.job(name, "4GiB", growth, **trace)


def doctor(lab: Lab, row: Row) -> None:
    """A capped PyTorch at work: nothing is wrong with it; what is said of the machine is kept for reading."""
    lab.need("torch")
    job = lab.job(row.name, "8GiB")
    with lab.capped(lab.python("release_states.py", "torch"), job) as session:
        _compute(session)
        one = lab.curb("doctor", str(session.pid))
        machine = lab.curb("doctor")
        session.tell("stop")
        session.expect("stopped", 30)
        session.end()
    row.goes_on = True
    row.expect(one.returncode == 0, f"curb doctor PID finds something wrong with a capped PyTorch: {one.stdout}{one.stderr}")
    row.section = ["```", "$ curb doctor PID", *_plain(one.stdout), "", "$ curb doctor", *_plain(machine.stdout), "```"]
    row.add_note(f"curb doctor says {machine.returncode} of the machine")


@contextmanager
def _at_work(lab: Lab, name: str, packages: dict[str, dict[str, str]]) -> Iterator[dict[str, Session]]:
    """A job of each framework of `packages` under its cap, and a PyTorch without curb ("bare"), all computing."""
    with ExitStack() as stack:
        jobs = {}
        for framework, env in packages.items():
            job = lab.job(f"{name} {framework}", _CAPS[framework])
            jobs[framework] = stack.enter_context(lab.capped(lab.python("release_states.py", framework), job, env))
        jobs["bare"] = stack.enter_context(lab.bare(lab.python("release_states.py", "torch"), f"{name} bare"))
        for session in jobs.values():
            _compute(session)
        yield jobs
        for session in jobs.values():
            session.tell("stop")
        for session in jobs.values():
            session.expect("stopped", 60)
            session.tell("end")


def _compute(session: Session) -> None:
    """Has it fill its cache, and work from then on."""
    session.expect("base", 180)
    session.tell("cache")
    session.expect("cached", 60)
    session.tell("compute")
    session.expect("cached", 60)


def _curb(lab: Lab, row: Row, *words: str) -> str:
    done = lab.curb(*words)
    row.expect(done.returncode == 0, f"curb {' '.join(words)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def _json(lab: Lab, *words: str) -> Any:
    done = lab.curb(*words, "--json")
    if not done.stdout:
        raise RuntimeError(f"curb {' '.join(words)} --json ended with {done.returncode}: {done.stderr}")
    return json.loads(_here(done.stdout))


def _nvidia_smi(command: str) -> dict[int, int]:
    """MiB by pid."""
    asked = [command, "--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True)
    lines = (line.split(",") for line in done.stdout.splitlines() if "," in line)
    return {int(pid): int(mib) for pid, mib in lines if mib.strip().isdigit()}


def _by_pid(answer: Any) -> dict[int, dict[str, Any]]:
    """Of `curb ps --json` on a machine with one GPU at work: each process's figures there."""
    return {use["pid"]: use for gpu in answer["gpus"] for use in gpu["uses"]}


def _metrics(lab: Lab, row: Row, jobs: dict[str, Session]) -> None:
    text = _curb(lab, row, "metrics")
    row.expect(text.endswith("# EOF\n"), "curb metrics does not end with # EOF")
    held = dict(re.findall(r'^curb_held_bytes\{[^}]*pid="(\d+)"[^}]*\} (\S+)$', text, re.MULTILINE))
    for name, session in jobs.items():
        row.expect(str(session.pid) in held, f"curb metrics says nothing of {name}")


def _until(session: Session, mib: int) -> float | None:
    """When no more than that is held; None: not within 5 s."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if session.watch.held <= mib * MIB:
            return time.monotonic()
        time.sleep(0.002)
    return None


def _plain(text: str) -> Sequence[str]:
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in _here(text).splitlines()]


def _here(text: str) -> str:
    """Paths from the repository on: what is kept is read on other machines."""
    return text.replace(f"{ROOT}/", "")


SEE: dict[str, Case] = {
    "ps beside nvidia-smi": ps,
    "curb cap, live": cap_live,
    "training, traced": traced,
    "doctor": doctor,
}
