#!/usr/bin/env python3
"""Random programs for a long time: soak_test.py BUILD

Programs on two simulated GPUs allocate and free memory of every family for as many seconds as the matrix says. Meanwhile
the test kills, replaces, forks, signals and suspends them, changes their policies and caps, and asks for releases. At
every quiet point no program works, curb's books of each process and device are the simulated machine's, and every socket
is that of a live process. Programs that live throughout have as many threads and descriptors as at their first quiet
point, and not much more host memory. CURB_SOAK_SECONDS sets the time.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from processes import BUILD, Judge, Traffic, of_process

import matrix
from simulated import Machine, within

SECONDS = float(os.environ.get("CURB_SOAK_SECONDS", "0")) or float(matrix.figure("soak_seconds"))
LONG_LIVED, SHORT_LIVED = 3, 5
QUIET_EVERY_S = 6.0
GROWTH_KIB = 24 * 1024
DISTURBANCES = ("kill", "fork", "fork", "signal", "signal", "edit", "edit", "release", "cap", "reset", "suspend", "suspend")
POLICIES = (
    {"gpu": {"*": {"cap": "3GiB"}}},
    {"gpu": {"*": {"cap": "2GiB", "cache": {"max": "256MiB", "idle": "1s"}}}},
    {"gpu": {"cuda:0": {"cap": "2GiB", "growth": {"start": "1GiB", "step": "256MiB", "every": "100ms"}}}},
    {"gpu": {"*": {"cap": "4GiB", "report": "device"}}, "release": {"idle": "1s"}},
    {"gpu": {"cuda:1": {"cap": "25%"}}, "release": {"steps": ["pools"]}},
    {},
)


class Soak(Judge):
    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.members: list[Traffic] = []
        self.first: dict[int, dict[str, int]] = {}
        self.files: dict[int, Path] = {}
        self.started = 0
        for _ in range(LONG_LIVED + SHORT_LIVED):
            self.start()
        self.long_lived = self.members[:LONG_LIVED]

    def start(self) -> None:
        self.started += 1
        file = self.machine.folder / f"job-{self.started}.json"
        self.edit(file)
        # A process with managed or shared memory cannot be suspended.
        families = ("all", "movable")[self.started % 2]
        words = [str(self.random.randrange(2, 6)), "400", "2", str(self.random.randrange(1 << 30)), families, "10000"]
        member = Traffic(self.machine, words, self.machine.under_curb(CURB_POLICY=str(file)))
        within(member.status)  # its control socket comes a moment after its first call
        self.members.append(member)
        self.files[member.pid] = file

    def edit(self, file: Path) -> None:
        policy = dict(self.random.choice(POLICIES)) | {"log": {"level": "off"}}
        if self.random.random() < 0.3:
            policy["trace"] = {"file": str(self.machine.folder / f"trace-{self.random.randrange(4)}-%p.json")}
        self.machine.policy(policy, file.name)

    def command(self, *words: str) -> int:
        return self.machine.curb(*words).returncode

    def disturb(self) -> None:
        one = self.random.choice(self.members)
        what = self.random.choice(DISTURBANCES)
        if what == "kill":
            if one in self.long_lived:
                return
            one.kill()
            self.members.remove(one)
            self.start()
        elif what == "fork":
            one.tell("fork")
        elif what == "signal":
            os.kill(one.pid, signal.SIGUSR1)
        elif what == "edit":
            self.edit(self.files[one.pid])
        elif what == "release":
            self.expect("release" in one.ask({"ask": "release"}), "a release is not answered")
        elif what in ("cap", "reset"):
            size = f"{self.random.randrange(1000, 4000)}MiB" if what == "cap" else "--reset"
            self.expect(self.command("cap", str(one.pid), size) == 0, f"curb cap {size} failed")
        elif self.command("suspend", str(one.pid)) == 0:  # refused for its memory, or if it takes too long
            self.expect(self.command("resume", str(one.pid)) == 0, "what was suspended does not go on")
        else:
            what = "suspend, refused"
        self.counts[what] += 1

    def differences(self) -> list[str]:
        """Returns the differences between the books of each process and device and the machine's."""
        books = self.machine.held()
        out = []
        for member in self.members:
            status = member.status()
            if not status or status.get("releasing"):
                out.append(f"{member.pid} is not to be asked, or releases: {status.get('releasing')}")
                continue
            for gpu in status["gpus"]:
                real = books.get((member.pid, gpu["ordinal"]), {"bytes": 0, "managed": 0})
                if gpu["held"] != real["bytes"] + real["managed"]:
                    out.append(f"{member.pid} on {gpu['ordinal']}: {gpu['kinds']}, and the books {real}")
                self.counts["compared"] += 1
        strangers = {pid for pid, _ in books} - {member.pid for member in self.members}
        return out + [f"the books have {strangers}, which are gone"] * bool(strangers)

    def quiet_point(self) -> None:
        self.make_quiet(self.members)
        # Waits for the end of releases, and until curb has measured old figures again.
        self.expect_none(self.differences)
        self.expect(self.command("ps") == 0, "curb ps failed")
        sockets = len(self.machine.sockets(".sock"))
        self.expect(sockets == len(self.members), f"{sockets} sockets of {len(self.members)} processes")
        self.counts["quiet points"] += 1
        for member in self.long_lived:
            has = of_process(member.pid)
            self.first.setdefault(member.pid, has)
            # The trace's thread and file come and go with the policy.
            for what, most in (("threads", 1), ("descriptors", 2), ("resident", GROWTH_KIB)):
                grown = has[what] - self.first[member.pid][what]
                self.expect(grown <= most, f"{member.pid} has {grown} more of {what} than at first")
        for member in self.members:
            member.tell("work")


def main() -> int:
    begin = time.monotonic()
    with Machine(BUILD, gpus=2) as machine:
        soak = Soak(machine)
        try:
            while (now := time.monotonic()) - begin < SECONDS:
                while time.monotonic() < min(now + QUIET_EVERY_S, begin + SECONDS):
                    soak.disturb()
                    time.sleep(soak.random.random() / 5)
                soak.quiet_point()
        finally:
            for member in soak.members:
                member.kill()
    soak.expect(soak.counts["suspend"] > 0, "none was suspended")
    return soak.report("soak_seconds", int(time.monotonic() - begin))


if __name__ == "__main__":
    sys.exit(main())
