#!/usr/bin/env python3
"""Up to five users on one simulated machine, one of them hostile: several_users_test.py BUILD

It prints how long the requests waited and how long `curb ps` took.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from simulated import PATIENCE_S, OfMachine, Process, within  # noqa: E402
from skipping import run_cases, skip  # noqa: E402

BUILD = Path(sys.argv[1]).resolve()
ONE, TWO, THREE, STRANGER = 54341, 54342, 54343, 54344
USERS = (ONE, TWO, THREE, STRANGER)
FILES, REQUESTS = 10_000, 1_000
POLICY = {
    "gpu": {"*": {"growth": {"wait": "120s"}}},
    "suspend": {"when_others_wait": "200ms", "deep": "never"},
    "log": {"level": "off"},
}


def own_folders(user: int) -> list[Path]:
    """The folders in /tmp that curb makes for a user, with their spares."""
    return [path for name in ("curb", "curb-public") for path in Path("/tmp").glob(f"{name}-{user}*")]


class SeveralUsersTest(OfMachine):
    memory = "6GiB"

    def setUp(self) -> None:
        self.addCleanup(lambda: [shutil.rmtree(path, ignore_errors=True) for user in USERS for path in own_folders(user)])
        super().setUp()
        self.machine.run_program(self.machine.bare).ends()  # which makes the books
        for path, mode in ((self.machine.folder, 0o755), (Path(self.machine.bare["CURB_SIM_STATE"]), 0o666)):
            path.chmod(mode)
        self.env = self.machine.under_curb(POLICY)
        del self.env["XDG_RUNTIME_DIR"]
        Path(self.env["CURB_POLICY"]).chmod(0o644)

    def program(self, user: int) -> Process:
        return self.machine.begin(self.machine.program, self.env, user=user, group=user, extra_groups=[], cwd="/")

    def shown(self, user: int) -> dict[str, Any]:
        """What `curb ps` shows to a user. Prints how long that took."""
        env = {name: value for name, value in self.env.items() if name not in ("LD_PRELOAD", "CURB_POLICY")}
        times = []
        for _ in range(5):
            begin = time.monotonic()
            done = subprocess.run(
                [BUILD / "bin/curb", "ps", "--json"],
                env=env, cwd="/", user=user, group=user, extra_groups=[], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
            times.append(time.monotonic() - begin)
        print(f"curb ps for user {user}: {statistics.median(times):.3f} s", flush=True)
        self.assertEqual(done.stderr, "")
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    def served(self, process: Process, request: str, what: str) -> None:
        begin = time.monotonic()
        process.asked(request, "held")
        print(f"{what}: served after {time.monotonic() - begin:.2f} s", flush=True)

    def test_idle_processes_leave_for_those_of_others(self) -> None:
        programs = [self.program(user) for user in (ONE, TWO, THREE)]
        for process in programs:
            self.served(process, "hold 3000", "the request of another user, while an idle process has the room")
        states = {process["user"]: process["state"] for process in self.shown(ONE)["processes"]}
        self.assertEqual([states[str(user)] for user in (ONE, TWO)], ["napping", "napping"])
        self.assertIn(states[str(THREE)], ("running", "napping"))
        for process in programs:
            process.asked("check", "right")

    def flood(self, liar: Process) -> None:
        """The stranger's files: 10,000 that are none of curb's, and requests of one living process that want next to nothing, so
        that they seem to go first."""
        folder = Path(f"/tmp/curb-public-{STRANGER}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o755)
        os.chown(folder, STRANGER, STRANGER)
        start = Path(f"/proc/{liar.pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
        namespace = os.stat("/proc/self/ns/pid").st_ino
        uuid = json.loads(self.machine.curb("ps", "--json").stdout)["gpus"][0]["uuid"]
        files = {f"{number}-{number}": "curb 1 no entry" for number in range(1, FILES + 1)}
        for number in range(REQUESTS):
            files[f"ticket-{uuid}-{number:020}-{liar.pid}-{number}"] = f"4096 {liar.pid} {start} {namespace} reserved"
        for name, text in files.items():
            os.symlink(text, folder / name)
            os.lchown(folder / name, STRANGER, STRANGER)

    def test_a_stranger_delays_no_request_for_long(self) -> None:
        for user in (ONE, TWO):  # the stranger was here first
            for name in (f"curb-{user}", f"curb-public-{user}"):
                path = Path("/tmp") / name
                path.mkdir(mode=0o777)
                os.chown(path, STRANGER, STRANGER)
        liar = Process(["sleep", "600"], self.machine.bare, user=STRANGER, group=STRANGER, extra_groups=[])
        self.machine.processes.append(liar)
        one, two = self.program(ONE), self.program(TWO)
        one.asked("hold 3000", "held")
        self.flood(liar)
        self.served(two, "hold 3000", "a request beside 1,000 of a stranger that has reserved what is free")
        self.shown(ONE)
        # One that is stopped, and one that is killed, while they wait.
        ends = [self.program(STRANGER), self.program(STRANGER)]
        for process, number in zip(ends, (signal.SIGSTOP, signal.SIGKILL), strict=True):
            process.tell("hold 5000")
            time.sleep(0.5)
            os.kill(process.pid, number)
        self.served(one, "hold 64", "a request behind one that is stopped and one that was killed")
        seen = {process["pid"]: process["state"] for process in self.shown(TWO)["processes"]}
        self.assertEqual(seen.get(ends[0].pid), "stopped", seen)
        self.assertNotIn(ends[1].pid, seen)
        for process in (one, two):
            process.asked("check", "right")
            self.assertEqual(process.ends(), 0)
        public = [path for path in own_folders(ONE) if "public" in path.name and path.stat().st_uid == ONE]
        self.assertEqual([path.name for path in public], [f"curb-public-{ONE}.1"])
        self.assertTrue(within(lambda: not list(public[0].iterdir())), "files are left behind")


if __name__ == "__main__":
    if os.geteuid() != 0:
        skip("only root can start programs of other users")
    run_cases()
