"""`curb ps`, `curb metrics`, `curb cap` and `curb report`, compared with nvidia-smi and NVML. For ps and metrics, capped jobs of
four frameworks and one job without curb compute at the same time on one GPU.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from cases.frameworks.training import judge_losses, note_ratio, trained
from cases.release import enter, fill_cache, leave
from lab import Case, Lab
from machine import ROOT
from measuring.books import Comparison
from measuring.watch import MIB
from row import Row
from session import Job, Session, Unavailable

_CAPS = {"torch": "8GiB", "jax": "6GiB", "tensorflow": "7GiB", "cupy": "5GiB"}
_APART = 0.01
"""The largest share by which curb's figure and nvidia-smi's may differ."""
_SAMPLES = 10
_WITHIN_MS = 1000.0
_TRACE = "curb.trace.json"


def _ps(lab: Lab, row: Row) -> None:
    """Compares them while the programs compute. nvidia-smi counts in whole MiB."""
    smi = shutil.which("nvidia-smi")
    if not smi:
        raise Unavailable("nvidia-smi is not installed")
    lab.need("torch")
    packages: dict[str, dict[str, str]] = {}
    for framework in _CAPS:
        try:
            packages[framework] = lab.need(framework)
        except Unavailable as why:
            row.add_note(f"without {framework}: {why}")
    worst = 0.0
    took = []
    with _at_work(lab, row, packages) as jobs:
        bare = jobs.pop("bare")
        for _ in range(_SAMPLES):
            start = time.monotonic()
            uses = {use["pid"]: use for gpu in _json(lab, "ps")["gpus"] for use in gpu["uses"]}
            took.append((time.monotonic() - start) * 1e3)
            theirs = _nvidia_smi(smi)
            for name, session in jobs.items():
                mib, held = theirs.get(session.pid), (uses.get(session.pid, {}).get("books") or {}).get("held")
                if mib is None or held is None:
                    row.expect(False, f"{name}, {session.pid}: nvidia-smi shows {mib} MiB, curb ps {held} bytes")
                    continue
                apart = abs(held / MIB - mib) / mib
                worst = max(worst, apart)
                row.expect(apart <= _APART, f"{name}: curb ps shows {held / MIB:,.0f} MiB, nvidia-smi {mib:,} MiB")
            nvml = uses.get(bare.pid, {}).get("nvml")
            same = nvml == theirs.get(bare.pid, 0) * MIB
            row.expect(same, f"without curb: curb ps shows {nvml} bytes, nvidia-smi {theirs.get(bare.pid)} MiB")
            time.sleep(0.2)
        metrics = _curb(lab, row, "metrics")
        pids = re.findall(r'^curb_held_bytes\{[^}]*pid="(\d+)"', metrics, re.MULTILINE)
        for name, session in jobs.items():
            row.expect(str(session.pid) in pids, f"curb metrics does not list {name}")
        table, detail = _curb(lab, row, "ps"), _curb(lab, row, "ps", str(jobs["torch"].pid))
        smi_table = subprocess.run([smi], capture_output=True, text=True, timeout=30, check=False).stdout
    row.goes_on = True
    row.details = {"worst": worst, "took_ms": took}
    row.add_note(
        f"{_SAMPLES} samples of {', '.join(packages)} at work: curb ps and nvidia-smi differ by at most {worst:.2%}; "
        f"curb ps took {statistics.median(took):.0f} ms (median)"
    )
    row.section = [
        *("```", "$ curb ps", *_plain(table), "```", ""),
        *("```", "$ nvidia-smi", *smi_table.splitlines()[-14:], "```", ""),
        *("```", "$ curb ps PID", *_plain(detail), "```"),
    ]


def _cap_live(lab: Lab, row: Row) -> None:
    """`curb cap` lowers the cap of a working program below its held memory, and resets it."""
    lab.need("torch")
    job = lab.job(row.name, "8GiB")
    with row.watching(lab.capped(lab.python("fill/release_states.py", "torch"), job), None) as session:
        fill_cache(session)
        held = enter(session, "compute") / MIB
        start = time.monotonic()
        answer = _json(lab, "cap", str(session.pid), "2GiB")
        answered = (time.monotonic() - start) * 1e3
        under = session.watch.falls_to(2048, timeout_s=5)
        row.expect(under is not None, f"{session.watch.held / MIB:,.0f} MiB are still held 5 s after curb cap PID 2GiB")
        ms = ((under or start) - start) * 1e3
        row.expect(ms <= _WITHIN_MS, f"under the new cap after {ms:.0f} ms, not within 1 s")
        low = session.held_mib()
        reset = _json(lab, "cap", str(session.pid), "--reset")
        leave(row, session, "after its cap was lowered")
        session.end()
    row.goes_on = True
    row.released_mib, row.released_ms = round(held - low), round(ms, 1)
    row.details = {"answer": answer, "reset": reset, "answered_ms": answered}
    row.add_note(
        f"{held:,.0f} MiB held under 8 GiB; curb cap PID 2GiB answered in {answered:.0f} ms, {low:,.0f} MiB after {ms:.0f} ms"
    )


def _traced(lab: Lab, row: Row) -> None:
    """A traced training has the same losses; measures the cost of the trace. Then one that grows, waits and releases: the peak in
    its report equals NVML's."""
    lab.need("torch")
    steps = 200 if lab.quick else 300
    argv = lab.python("training/train.py", str(steps))
    runs: dict[str, list[Any]] = {"capped": [], "traced": []}
    for turn in range(1 if lab.quick else 3):
        for kind, found in runs.items():
            with lab.capped(argv, _traced_job(lab, f"{row.name} {kind} {turn}", kind == "traced")) as session:
                found.append(trained(session))
                session.end()
    growth = {"start": "1GiB", "step": "512MiB", "every": "1s", "wait": "10s"}
    job = _traced_job(lab, f"{row.name} shown", True, growth)
    with row.watching(lab.capped(argv, job)) as session:
        session.expect("training", 120)
        time.sleep(2)
        session.send()
        shown = session.expect("done", 120)
        time.sleep(1)
        session.send()
        time.sleep(1)
        session.end()
        peak = session.watch.peak / MIB
    row.goes_on = True
    row.add_note(f"{steps} losses {judge_losses(row, [*runs['capped'], *runs['traced'], shown])}; NVML's peak {peak:,.0f} MiB")
    capped, traced = ([run["steps_per_s"] for run in found] for found in runs.values())
    note_ratio(row, capped, traced)
    trace = job.folder / _TRACE
    summary = _json(lab, "report", str(trace))
    peaks = Comparison(round(summary["gpus"][0]["peak"]["bytes"] / MIB, 1), round(peak, 1), "the peak of curb report")
    row.expect(peaks.agrees, peaks.text)
    for name, ending in (("training", ".svg"), ("training.html", ".html")):
        _curb(lab, row, "report", str(trace), "-o", str(trace.with_suffix(ending)))
        row.figures[name] = _here(trace.with_suffix(ending).read_text())
    text, replayed = _curb(lab, row, "report", str(trace)), _curb(lab, row, "replay", str(trace), "--cap", "1GiB")
    row.details |= {"summary": summary, "bytes": trace.stat().st_size}
    row.section = ["```", "$ curb report curb.trace.json", *_plain(text), "", "$ curb replay curb.trace.json --cap 1GiB"]
    row.section += [*_plain(replayed), "```"]


def _traced_job(lab: Lab, name: str, with_trace: bool, growth: dict[str, str] | None = None) -> Job:
    trace = {"trace": {"file": str(lab.folder_of(name) / _TRACE)}} if with_trace else {}
    return lab.job(name, "4GiB", growth, **trace)


@contextmanager
def _at_work(lab: Lab, row: Row, packages: dict[str, dict[str, str]]) -> Iterator[dict[str, Session]]:
    """Runs a capped job of each framework in `packages`, and PyTorch without curb ("bare"). Yields them while all compute."""
    with ExitStack() as stack:
        jobs = {}
        for framework, env in packages.items():
            job = lab.job(f"{row.name} {framework}", _CAPS[framework])
            jobs[framework] = stack.enter_context(lab.capped(lab.python("fill/release_states.py", framework), job, env))
        jobs["bare"] = stack.enter_context(lab.bare(lab.python("fill/release_states.py", "torch"), f"{row.name} bare"))
        started = list(jobs.items())
        for _, session in started:
            fill_cache(session)
            enter(session, "compute")
        yield jobs
        for name, session in started:
            leave(row, session, name)
            session.tell("end")


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
    """Returns the MiB that each process holds, by pid."""
    query = [command, "--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    lines = (line.split(",") for line in done.stdout.splitlines() if "," in line)
    return {int(pid): int(mib) for pid, mib in lines if mib.strip().isdigit()}


def _plain(text: str) -> Sequence[str]:
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in _here(text).splitlines()]


def _here(text: str) -> str:
    """Shortens paths to begin at the repository, because results are read on other machines."""
    return text.replace(f"{ROOT}/", "")


SEE: dict[str, Case] = {"ps beside nvidia-smi": _ps, "curb cap, live": _cap_live, "training, traced": _traced}
