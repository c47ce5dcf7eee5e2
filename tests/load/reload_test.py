#!/usr/bin/env python3
"""Policies reloaded under load: reload_test.py BUILD PORTION [RUNTIME]

8 threads of traffic_program allocate while the test edits its policy and runs `curb cap`, as often as the matrix says,
divided by PORTION. It edits by rename and in place, writes good policies and bad ones, and changes the cap, growth, the
cache and the trace. Every good policy comes into force. The process never holds more than the highest cap in force, and
ends with as many threads and descriptors, and as much host memory, as before.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Callable

from processes import BUILD, PORTION, RUNTIME, SEED, Judge, Traffic, of_process

import matrix
from simulated import MIB, PATIENCE_S, Machine

LEAST_CAP, MOST_CAP = 1200, 3500  # MiB
WARM = 30
BAD = (
    '{ "version": 1, "gpu": { "*": { "cap": "12GiB" } }',
    '{ "version": 1, "gpu": { "*": { "cap": "-1GiB" } } }',
    '{ "version": 1, "gpus": {} }',
    '{ "version": 2 }',
    "",
)


class Storm(Judge):
    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.file = machine.folder / "job.json"
        self.cap = MOST_CAP * MIB
        """The file's cap; a live cap overrides it."""
        self.live: int | None = None
        self.in_force = self.before = MOST_CAP * MIB
        """The caps in force, live ones included, after the last round and the one before."""
        # With a trace, as its thread stays once it was started.
        trace = {"file": str(machine.folder / "trace-0.json")}
        self.write_by_rename(json.dumps(self.plain({"cap": f"{self.cap}B"}) | {"trace": trace}))
        words = ["8", "1024", "1", str(SEED), "no-pools", "300"]
        self.traffic = Traffic(machine, words, machine.under_curb(CURB_POLICY=str(self.file)))
        self.wait("the control socket", bool)
        self.held = self.books()["held"]

    def books(self) -> dict[str, int]:
        """Returns what it holds, and the most that it has held since the last call."""
        process = self.machine.held("--forget-highs")[(self.traffic.pid, 0)]
        return {"held": process["bytes"] + process["managed"], "high": process["high"]}

    def plain(self, gpu: dict[str, Any]) -> dict[str, Any]:
        """Returns a policy with a rule name of its own, which the status shows."""
        rule = {"name": f"{self.counts.total()}", "match": {"exe": "*"}, "release": {"idle": "1h"}}
        return {"version": 1, "gpu": {"*": gpu}, "log": {"level": "off"}, "rules": [rule]}

    def policy(self, cap: int) -> tuple[str, dict[str, Any]]:
        gpu: dict[str, Any] = {"cap": f"{cap}B"}
        policy = self.plain(gpu)
        if self.random.random() < 0.4:
            gpu["growth"] = {"start": "600MiB", "step": "256MiB", "every": "1ms"}
        if self.random.random() < 0.4:
            gpu["cache"] = {"max": "256MiB", "idle": "100ms"}
        if self.random.random() < 0.3:
            policy["trace"] = {"file": str(self.machine.folder / f"trace-{self.random.randrange(2)}.json")}
        return json.dumps(policy), policy

    def write_in_place(self, text: str) -> None:
        self.file.write_text(text)

    def write_by_rename(self, text: str) -> None:
        fresh = self.file.with_suffix(".new")
        fresh.write_text(text)
        fresh.rename(self.file)

    def wait(self, what: str, is_so: Callable[[dict[str, Any]], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not is_so(status := self.traffic.status()):
            if self.traffic.child.poll() is not None:
                raise RuntimeError(f"{self.traffic.child.returncode} ended it: {self.traffic.log.read_text()}")
            if time.monotonic() > until:
                self.expect(False, f"{what} is not in force after {PATIENCE_S:g} s: {status}")
                return
            time.sleep(0.002)

    def command(self, *words: str) -> dict[str, Any]:
        done = self.machine.curb(*words, "--json")
        self.counts[f"curb {words[0]}"] += 1
        answer = json.loads(done.stdout or "{}")
        one: dict[str, Any] = answer[0] if isinstance(answer, list) else answer
        return one | {"exit status": done.returncode}

    def edit(self) -> None:
        """Writes another policy, good or bad, and waits until curb has seen it."""
        way = self.random.choice((self.write_in_place, self.write_by_rename))
        bad = self.random.random() < 0.2
        if bad:
            # A new text each time: curb ignores an unchanged one.
            way(self.random.choice(BAD) + f"// {self.counts.total()}\n")
            self.wait("the error", lambda status: bool(status.get("policy", {}).get("error")))
        else:
            cap = self.random.randrange(LEAST_CAP, MOST_CAP) * MIB
            text, policy = self.policy(cap)
            way(text)
            self.cap = cap
            self.wait(f"cap {cap}", lambda status: self.is_in_force(status, policy))
        self.counts[f"{'bad' if bad else 'good'}, {way.__name__.removeprefix('write_')}"] += 1

    def is_in_force(self, status: dict[str, Any], policy: dict[str, Any]) -> bool:
        if not status:
            return False
        gpu, wanted = status["gpus"][0], policy["gpu"]["*"]
        has_allowance = gpu.get("allowance") is not None
        trace = (status.get("trace") or {}).get("file")
        return (
            gpu["cap"] == self.now_in_force()
            and not status["policy"].get("error")
            and f'"{policy["rules"][0]["name"]}"' in status["policy"]["rule"]
            and has_allowance == ("growth" in wanted)
            and trace == policy.get("trace", {}).get("file")
        )

    def set_cap(self) -> None:
        self.live = None if self.live is not None else self.random.randrange(LEAST_CAP, MOST_CAP) * MIB
        answer = self.command("cap", str(self.traffic.pid), "--reset" if self.live is None else f"{self.live}B")
        now = self.now_in_force()
        self.expect(answer["exit status"] == 0, f"curb cap failed: {answer}")
        self.wait(f"live cap {now}", lambda status: bool(status) and status["gpus"][0]["cap"] == now)
        self.counts["live caps"] += 1

    def round(self) -> None:
        """Reloads once, and checks that the process held no more than the highest cap in force meanwhile."""
        caps_before = [self.in_force, self.before]
        if self.random.random() < 0.2:
            self.set_cap()
        else:
            self.edit()
        now = self.books()
        # A request that was granted under the cap before the last one may still be on its way to the driver.
        most = max(self.held, self.now_in_force(), *caps_before)
        caps = f"{caps_before} and {self.now_in_force()}"
        self.expect(now["high"] <= most, f"held {now['high']} at most, under {caps}, from {self.held}")
        self.before, self.in_force, self.held = self.in_force, self.now_in_force(), now["held"]

    def now_in_force(self) -> int:
        return self.live if self.live is not None else self.cap

    def host(self) -> dict[str, int]:
        """Returns its use of the host when no thread works, without a trace and a live cap."""
        if self.live is not None:
            self.set_cap()
        self.cap = MOST_CAP * MIB
        policy = self.plain({"cap": f"{self.cap}B"})
        self.write_by_rename(json.dumps(policy))
        self.wait("the plain policy", lambda status: self.is_in_force(status, policy))
        _, wrong = self.traffic.quiet()
        self.expect(wrong == 0, f"{wrong} calls with another error than a refusal: {self.traffic.log.read_text()}")
        self.traffic.tell("empty")
        self.expect(self.traffic.line() == "empty", "it does not give everything back")
        self.before = self.in_force = self.cap
        return of_process(self.traffic.pid)


def main() -> int:
    wanted = max(matrix.figure("reloads") // PORTION, 1)
    with Machine(BUILD, sanitizer=RUNTIME) as machine:
        storm = Storm(machine)
        try:
            for _ in range(min(WARM, wanted)):
                storm.round()
            before = storm.host()
            storm.traffic.tell("work")
            for _ in range(wanted):
                storm.round()
            after = storm.host()
            status = storm.traffic.ends()
        finally:
            storm.traffic.kill()
    print(f"before: {before}, after: {after}", flush=True)
    storm.expect(status == 0, f"the program ended with {status}")
    for what in ("threads", "descriptors"):
        storm.expect(after[what] == before[what], f"{after[what]} {what}, before it were {before[what]}")
    if not RUNTIME and PORTION == 1:  # sanitizers keep freed memory
        grown = after["resident"] - before["resident"]
        # Without membarrier curb cannot free a policy that it replaces (decision 0024): 1.7 KiB each.
        storm.expect(grown <= 4096 + 3 * wanted, f"{grown} KiB more of host memory after {wanted} reloads")
    return storm.report("reloads", wanted)


if __name__ == "__main__":
    sys.exit(main())
