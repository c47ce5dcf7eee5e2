#!/usr/bin/env python3
"""Every command against a crowd: crowd_test.py BUILD

24 processes on two simulated GPUs, capped by file, by variable, traced, or without curb, are killed, stopped, continued, forked
and replaced at random for CURB_CROWD_SECONDS (15), while every command of curb runs against them. Each command answers in
time, with an allowed exit status and the members of its example. At the end the processes stop working, and curb's figures for
each equal the simulated machine's books. CURB_LOAD_SEED repeats a run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from processes import BUILD, Judge, Traffic

from answers import faults
from simulated import Machine

SECONDS = float(os.environ.get("CURB_CROWD_SECONDS", "15"))
CROWD = 24
CAPS = {"file": 3 * 1024, "traced": 2 * 1024, "variable": 4 * 1024}
"""In MiB, by kind; the other kinds have none."""
KINDS = (*CAPS, "no cap", "without curb")
# A command waits for a process that does not answer, and for its turn on a machine with few cores.
PATIENCE_S = 20.0


class Member(Traffic):
    """One process of the crowd."""

    def __init__(self, machine: Machine, kind: str, seed: int) -> None:
        self.kind, self.stopped = kind, False
        environment = {
            "without curb": machine.bare,
            "variable": machine.under_curb(CURB_CAP=f"{CAPS['variable']}MiB"),
        }.get(kind) or machine.under_curb(CURB_POLICY=str(machine.folder / f"{kind}.json"))
        super().__init__(machine, ["1", "80", "2", str(seed), "all", "500"], environment)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)
        self.stopped = number == signal.SIGSTOP


class Crowd(Judge):
    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.slowest: dict[str, float] = {}
        for kind in ("file", "traced", "no cap"):
            policy: dict[str, Any] = {}
            if kind in CAPS:
                policy["gpu"] = {"*": {"cap": f"{CAPS[kind]}MiB"}}
            if kind == "traced":
                policy["trace"] = {"file": str(machine.folder / "trace-%p.json")}
            machine.policy(policy, f"{kind}.json")
        self.members: list[Member] = []
        self.ended: set[int] = set()
        for number in range(CROWD):
            self.start(KINDS[number % len(KINDS)])

    def start(self, kind: str) -> None:
        self.members.append(Member(self.machine, kind, self.random.randrange(1 << 30)))

    def disturb(self) -> None:
        """Kills, stops, continues, forks or replaces one of them."""
        one = self.random.choice(self.members)
        what = self.random.choice(("kill", "stop", "go on", "go on", "fork", "fork", "replace"))
        self.counts[what] += 1
        if what in ("kill", "replace"):
            one.kill()
            self.members.remove(one)
            self.ended.add(one.pid)
            self.start(one.kind if what == "replace" else self.random.choice(KINDS))
        elif what == "stop" and sum(member.stopped for member in self.members) < CROWD // 3:
            one.send(signal.SIGSTOP)
        elif what == "go on":
            one.send(signal.SIGCONT)
        elif what == "fork" and not one.stopped:
            one.tell("fork")

    def commands(self) -> list[tuple[str, list[str], set[int]]]:
        """(name of its JSON answer, words, exit statuses). The process may have ended, or never ran under curb."""
        one = self.random.choice(self.members)
        pid = str(one.pid)
        return [
            ("ps", ["ps", "--json"], {0}),
            ("", ["ps"], {0}),
            ("ps", ["ps", pid, "--json"], {0, 1}),
            ("", ["ps", pid], {0, 1}),
            ("release", ["release", pid, "--json"], {0, 1}),
            ("cap", ["cap", pid, f"{self.random.randrange(1500, 5000)}MiB", "--json"], {0, 1}),
            ("cap", ["cap", pid, "--reset", "--json"], {0, 1}),
            ("", ["metrics"], {0}),
            ("doctor", ["doctor", "--json"], {0, 1}),
            ("doctor", ["doctor", pid, "--json"], {0, 1}),
        ]

    def run(self, name: str, words: list[str], statuses: set[int]) -> Any:
        command = f"curb {' '.join(words)}"
        start = time.monotonic()
        # A release by a stopped process ends only once the process goes on.
        try:
            done = self.machine.curb(*words, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.expect(words[0] == "release", f"{command} has not ended after {PATIENCE_S:g} s")
            self.counts["release that waits"] += 1
            return None
        self.counts[words[0]] += 1
        self.slowest[words[0]] = max(self.slowest.get(words[0], 0.0), time.monotonic() - start)
        self.expect(done.returncode in statuses, f"{command} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
        if done.returncode == 0 or "--json" in words:
            self.expect(bool(done.stdout), f"{command} said nothing: {done.stderr[-500:]}")
        if name and done.stdout:
            try:
                answer = json.loads(done.stdout)
            except ValueError as error:
                self.expect(False, f"{command}: not JSON: {error}: {done.stdout[:300]}")
                return None
            wrong = faults(name, answer)
            self.expect(not wrong, f"{command}: {wrong[:3]}")
            return answer
        return None

    def stand_still(self) -> None:
        for member in self.members:
            member.send(signal.SIGCONT)
        self.make_quiet(self.members)

    def differences(self) -> list[str]:
        """Returns the differences between curb's figures and the machine's."""
        answer = self.run("ps", ["ps", "--json"], {0})
        books = self.machine.held()
        ours = {member.pid for member in self.members} | self.ended | {pid for pid, _ in books}
        seen, out, compared = set(), [], 0
        for gpu in answer["gpus"]:
            number = gpu["index"]
            for use in gpu["uses"]:
                pid, real = use["pid"], books.get((use["pid"], number), {"bytes": 0, "managed": 0})
                if pid not in ours:
                    continue  # root sees the processes of all users, and of other simulated machines
                seen.add((pid, number))
                if (use["nvml"] or 0) != real["bytes"]:
                    out.append(f"{pid} on {number}: nvml {use['nvml']}, books {real}")
                if use["books"]:
                    compared += 1
                    if use["books"]["held"] != real["bytes"] + real["managed"]:
                        out.append(f"{pid} on {number}: held {use['books']['held']}, books {real}")
        if missing := {key for key, process in books.items() if process["bytes"]} - seen:
            out.append(f"curb ps leaves out {sorted(missing)}")
        if listed := {use["pid"] for gpu in answer["gpus"] for use in gpu["uses"]} & self.ended:
            out.append(f"curb ps lists {listed}, which have ended")
        shown = {one["pid"]: one for one in answer["processes"]}
        for member in self.members:
            one = shown.get(member.pid, {})
            of_traffic = "traffic_program" in str(one.get("command"))
            if not of_traffic or one["under_curb"] != (member.kind != "without curb"):
                out.append(f"of {member.pid}, {member.kind}, curb ps says {one}")
        self.counts["compared"] = compared
        return out

    def compare(self) -> None:
        """The processes are idle: curb's figures equal the machine's, once requested releases have ended."""
        self.expect_none(self.differences)
        self.expect(self.counts["compared"] > 0, "nothing was compared")
        sockets = len(self.machine.sockets(".sock"))
        capped = sum(member.kind != "without curb" for member in self.members)
        self.expect(sockets == capped, f"{sockets} sockets for {capped} processes: dead ones stay")

    def read_traces(self) -> None:
        """Reads the traces, also those of killed processes."""
        traces = sorted(self.machine.folder.glob("trace-*.json"))
        for trace in traces[:8]:
            if trace.stat().st_size == 0:
                continue  # it was killed before anything could be written
            page = trace.with_suffix(".html")
            self.run("report", ["report", str(trace), "--json"], {0})
            self.run("", ["report", str(trace)], {0})
            done = self.machine.curb("report", trace, "-o", page)
            self.expect(done.returncode == 0 and page.stat().st_size > 1000, f"no page of {trace.name}: {done.stderr}")
            self.run("replay", ["replay", str(trace), "--cap", "1GiB", "--json"], {0})
        self.expect(bool(traces), "no trace was written")


def main() -> int:
    with Machine(BUILD, gpus=2) as machine:
        crowd = Crowd(machine)
        try:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                for name, words, statuses in crowd.random.sample(crowd.commands(), 3):
                    crowd.disturb()
                    crowd.run(name, words, statuses)
            crowd.stand_still()
            crowd.compare()
            crowd.read_traces()
        finally:
            for member in crowd.members:
                member.kill()
    print("slowest, s:", ", ".join(f"{what} {took:.2f}" for what, took in sorted(crowd.slowest.items())))
    return crowd.report()


if __name__ == "__main__":
    sys.exit(main())
