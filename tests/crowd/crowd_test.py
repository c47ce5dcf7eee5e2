#!/usr/bin/env python3
"""Every command against a crowd: crowd_test.py CURB LIBRARY SIM BOOKS PROGRAM

At least 20 processes on two simulated GPUs, capped by file, by variable, traced, or without curb, are killed, stopped,
continued, forked and replaced at random for CURB_CROWD_SECONDS (15), while every command of curb runs against them. Each
answers in time, ends with a status that it may end with, and says what its schema says. At the end all stand still, and
what curb says of each is what the simulated machine's books say. CURB_CROWD_SEED repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

try:
    from jsonschema import Draft202012Validator
except ImportError:
    print("crowd_test: skipped: python3-jsonschema >= 4 is not installed (scripts/setup test)")
    sys.exit(77)

ROOT = Path(__file__).resolve().parent.parent.parent
SCHEMAS = {
    path.name.removesuffix(".schema.json"): Draft202012Validator(json.loads(path.read_text()))
    for path in sorted((ROOT / "cli" / "schemas").glob("*.schema.json"))
}
CURB, LIBRARY, SIM, BOOKS, PROGRAM = (Path(word).resolve() for word in sys.argv[1:6])
SECONDS = float(os.environ.get("CURB_CROWD_SECONDS", "15"))
SEED = int(os.environ.get("CURB_CROWD_SEED", str(time.time_ns() % 1_000_000)))
CROWD = 24
MIB = 2**20
CAPS = {"file": 3 * 1024, "traced": 2 * 1024, "variable": 4 * 1024}
"""MiB, by kind; the rest has none."""
KINDS = (*CAPS, "no cap", "without curb")
# A command waits for a process that does not answer; on a machine of two cores with so many at work also for its turn.
PATIENCE_S = 20.0


class Member:
    """One process of the crowd."""

    def __init__(self, kind: str, folder: Path, environment: dict[str, str], seed: int) -> None:
        self.kind, self.stopped = kind, False
        env = dict(environment)
        if kind != "without curb":
            env |= {"LD_PRELOAD": str(LIBRARY), "CURB_POLICY": str(folder / f"{kind}.json")}
        if kind == "variable":
            del env["CURB_POLICY"]
            env["CURB_CAP"] = f"{CAPS[kind]}MiB"
        self.process = subprocess.Popen(
            [str(PROGRAM), str(seed)],
            env=env,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        self.pid = self.process.pid

    def tell(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.stopped = True

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.stopped = False

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Crowd:
    def __init__(self, folder: Path) -> None:
        self.random = random.Random(SEED)
        self.folder = folder
        self.runtime = folder / "runtime"
        self.runtime.mkdir(mode=0o700)
        self.state = folder / "machine"
        self.counts: Counter[str] = Counter()
        self.slowest: dict[str, float] = {}
        self.wrong: list[str] = []
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("CURB_", "LD_PRELOAD", "XDG_"))
        } | {
            "XDG_RUNTIME_DIR": str(self.runtime),
            "HOME": str(folder),
            "LD_LIBRARY_PATH": str(SIM),
            "CURB_SIM_STATE": str(self.state),
            "CURB_SIM_GPUS": "2",
            "CURB_SIM_MEMORY": "80GiB",
        }
        for kind in ("file", "traced", "no cap"):
            policy: dict[str, Any] = {"version": 1}
            if kind in CAPS:
                policy["gpu"] = {"*": {"cap": f"{CAPS[kind]}MiB"}}
            if kind == "traced":
                policy["trace"] = {"file": str(folder / "trace-%p.json")}
            (folder / f"{kind}.json").write_text(json.dumps(policy))
        self.members: list[Member] = []
        self.ended: set[int] = set()
        for number in range(CROWD):
            self.start(KINDS[number % len(KINDS)])

    def start(self, kind: str) -> None:
        self.members.append(Member(kind, self.folder, self.environment, self.random.randrange(1 << 30)))

    def expect(self, right: bool, otherwise: str) -> None:
        if not right:
            self.wrong.append(otherwise)
            print("WRONG:", otherwise, flush=True)

    def disturb(self) -> None:
        """One thing that happens to one of them."""
        one = self.random.choice(self.members)
        what = self.random.choice(("kill", "stop", "go on", "go on", "fork", "fork", "replace"))
        self.counts[what] += 1
        if what in ("kill", "replace"):
            one.kill()
            self.members.remove(one)
            self.ended.add(one.pid)
            self.start(one.kind if what == "replace" else self.random.choice(KINDS))
        elif what == "stop" and sum(member.stopped for member in self.members) < CROWD // 3:
            one.stop()
        elif what == "go on":
            one.go_on()
        elif what == "fork" and not one.stopped:
            one.tell("fork")

    def commands(self) -> list[tuple[str, list[str], set[int]]]:
        """(schema, words, exit statuses): one of them that may have ended meanwhile, or never ran under curb."""
        one = self.random.choice(self.members)
        pid = str(one.pid)
        return [
            ("ps", ["ps", "--json"], {0}),
            ("", ["ps", "--csv"], {0}),
            ("", ["ps"], {0}),
            ("ps", ["ps", pid, "--json"], {0, 1}),
            ("", ["ps", pid], {0, 1}),
            ("release", ["release", pid, "--json"], {0, 1}),
            ("cap", ["cap", pid, f"{self.random.randrange(1500, 5000)}MiB", "--json"], {0, 1}),
            ("cap", ["cap", pid, "--reset", "--json"], {0, 1}),
            ("policy-reload", ["policy", "reload", pid, "--json"], {0, 1}),
            ("", ["metrics"], {0}),
            ("doctor", ["doctor", "--json"], {0, 1}),
            ("doctor", ["doctor", pid, "--json"], {0, 1}),
        ]

    def run(self, schema: str, words: list[str], statuses: set[int]) -> Any:
        command = f"curb {' '.join(words)}"
        start = time.monotonic()
        # One that waits for a stopped process with a release under way waits until that goes on.
        try:
            done = subprocess.run(
                [str(CURB), *words], env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
        except subprocess.TimeoutExpired:
            self.expect(words[0] == "release", f"{command} has not ended after {PATIENCE_S:g} s")
            self.counts["release that waits"] += 1
            return None
        self.counts[words[0]] += 1
        self.slowest[words[0]] = max(self.slowest.get(words[0], 0.0), time.monotonic() - start)
        self.expect(done.returncode in statuses, f"{command} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
        if done.returncode == 0 or "--json" in words:
            self.expect(bool(done.stdout), f"{command} said nothing: {done.stderr[-500:]}")
        if schema and done.stdout:
            try:
                answer = json.loads(done.stdout)
            except ValueError as error:
                self.expect(False, f"{command}: not JSON: {error}: {done.stdout[:300]}")
                return None
            faults = [f"{fault.json_path}: {fault.message}" for fault in SCHEMAS[schema].iter_errors(answer)]
            self.expect(not faults, f"{command}: {faults[:3]}")
            return answer
        return None

    def books(self) -> dict[tuple[int, int], int]:
        """(pid, device) -> bytes, as the simulated machine says."""
        text = subprocess.run([str(BOOKS), str(self.state)], capture_output=True, text=True, timeout=30, check=True).stdout
        return {
            (process["pid"], number): process["bytes"]
            for number, device in enumerate(json.loads(text)["devices"])
            for process in device["processes"]
        }

    def stand_still(self) -> None:
        for member in self.members:
            member.go_on()
            member.tell("quiet")
        for member in self.members:
            while member.answer() != "quiet":
                pass

    def compare(self) -> None:
        """Nobody works any more: what curb says is what the machine says."""
        answer = self.run("ps", ["ps", "--json"], {0})
        books = self.books()
        ours = {member.pid for member in self.members} | self.ended | {pid for pid, _ in books}
        seen = set()
        for gpu in answer["gpus"]:
            number = gpu["index"]
            for use in gpu["uses"]:
                pid, real = use["pid"], books.get((use["pid"], number), 0)
                if pid not in ours:
                    continue  # root sees the processes of everybody, and of other machines that are simulated here
                seen.add((pid, number))
                self.expect((use["nvml"] or 0) == real, f"{pid} on {number}: nvml {use['nvml']}, books {real}")
                if use["books"]:
                    held = use["books"]["held"]
                    self.expect(held == real, f"{pid} on {number}: held {held}, books {real}")
                    self.counts["compared"] += 1
        missing = {key for key, held in books.items() if held} - seen
        self.expect(not missing, f"curb ps leaves out {sorted(missing)}")
        listed = {use["pid"] for gpu in answer["gpus"] for use in gpu["uses"]}
        self.expect(not listed & self.ended, f"curb ps lists {listed & self.ended}, which have ended")
        sockets = list((self.runtime / "curb").glob("*.sock"))
        capped = sum(member.kind != "without curb" for member in self.members)
        self.expect(len(sockets) == capped, f"{len(sockets)} sockets for {capped} processes: dead ones stay")

    def look_at_traces(self) -> None:
        """Those of processes that were killed too."""
        traces = sorted(self.folder.glob("trace-*.json"))
        for trace in traces[:8]:
            if trace.stat().st_size == 0:
                continue  # it was killed before anything could be written
            page = trace.with_suffix(".html")
            self.run("report", ["report", str(trace), "--json"], {0})
            self.run("", ["report", str(trace)], {0})
            done = subprocess.run([str(CURB), "report", str(trace), "-o", str(page)], check=False, capture_output=True)
            self.expect(done.returncode == 0 and page.stat().st_size > 1000, f"no page of {trace.name}: {done.stderr!r}")
            self.run("replay", ["replay", str(trace), "--cap", "1GiB", "--json"], {0})
        self.expect(bool(traces), "no trace was written")

    def end(self) -> None:
        for member in self.members:
            member.kill()


def main() -> int:
    print(f"CURB_CROWD_SEED={SEED}", flush=True)
    with tempfile.TemporaryDirectory(prefix="curb-crowd-", ignore_cleanup_errors=True) as temporary:
        crowd = Crowd(Path(temporary))
        try:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                for schema, words, statuses in crowd.random.sample(crowd.commands(), 3):
                    crowd.disturb()
                    crowd.run(schema, words, statuses)
            crowd.stand_still()
            crowd.compare()
            crowd.look_at_traces()
        finally:
            crowd.end()
    print(", ".join(f"{count} {what}" for what, count in sorted(crowd.counts.items())))
    print("slowest, s:", ", ".join(f"{what} {took:.2f}" for what, took in sorted(crowd.slowest.items())))
    if crowd.wrong:
        print(f"{len(crowd.wrong)} things are wrong; CURB_CROWD_SEED={SEED} repeats the run")
    return 1 if crowd.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
