#!/usr/bin/env python3
"""curb reaches processes in the namespaces of containers from outside, and they meet in /run/curb: containers_test.py BUILD"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from simulated import MIB, PATIENCE_S, OfMachine, Process, within  # noqa: E402
from skipping import run_cases, skip  # noqa: E402

BUILD = Path(sys.argv[1]).resolve()
NAMESPACES = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--mount", "--pid", "--fork", "--mount-proc"]


class ContainersTest(OfMachine):
    """Starts a program in a pid namespace of its own, with a runtime directory that only its mount namespace has."""

    NAMESPACES = NAMESPACES
    ENTER = ["nsenter", "--mount", *([] if os.geteuid() == 0 else ["--user", "--preserve-credentials"])]

    def make_ready(self) -> None:
        """Lets the container use the machine's folder."""

    def setUp(self) -> None:
        super().setUp()
        self.make_ready()
        hide = 'mount -t tmpfs -o mode=700 none "$XDG_RUNTIME_DIR" && exec "$@"'
        self.process = self.machine.start(
            [*self.NAMESPACES, "sh", "-c", hide, "sh", "env", f"LD_PRELOAD={self.machine.preload}", *self.machine.program],
            self.machine.bare | {"CURB_CAP": "4GiB", "CURB_LOG": "off"},
        )
        self.process.asked("take 1024")

    def seen(self) -> dict:
        """Returns the process from `curb ps --json`. Waits for its books, which come a moment after its first CUDA call."""

        def processes() -> list[dict]:
            shown = self.machine.curb("ps", "--tree", str(self.process.pid), "--json").stdout
            return [one for one in (json.loads(shown)["processes"] if shown else []) if one["status"]]

        (process,) = within(processes)
        return process

    def test_ps_release_and_cap_reach_it(self) -> None:
        process = self.seen()
        pid = process["pid"]
        self.assertNotEqual(pid, process["status"]["pid"])
        one = json.loads(self.machine.curb("ps", str(pid), "--json").stdout)
        self.assertEqual(one["processes"][0]["status"]["pid"], process["status"]["pid"])
        uses = [use for gpu in one["gpus"] for use in gpu["uses"] if use["pid"] == pid]
        self.assertGreater(uses[0]["books"]["held"], 1024 * MIB)
        released = self.machine.curb("release", str(pid))
        self.assertEqual((released.returncode, released.stderr), (0, ""))
        capped = self.machine.curb("cap", str(pid), "2GiB")
        self.assertIn("cap 4 GiB -> 2 GiB", capped.stdout)
        self.process.tell("take 2048")
        self.assertEqual(self.process.line(), "refused")

    def test_a_link_in_the_container_leads_nowhere_else(self) -> None:
        pid = str(self.seen()["pid"])
        swap = 'mv "$0/curb" "$0/other" && ln -s /proc/1/root/tmp "$0/curb"'
        subprocess.run([*self.ENTER, "--target", pid, "sh", "-c", swap, str(self.machine.runtime)], check=True, timeout=PATIENCE_S)
        failed = self.machine.curb("release", pid)
        self.assertEqual(failed.returncode, 1)
        self.assertIn("runs in a container", failed.stderr)


USER = 54331
BECOME = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--"]


@unittest.skipUnless(os.geteuid() == 0, "only root can start programs of other users")
class RootlessTest(ContainersTest):
    """The same in a container of another user, in which the root outside has no name."""

    NAMESPACES = [*BECOME, *NAMESPACES[:1], "--user", "--map-root-user", *NAMESPACES[1:]]
    ENTER = [*BECOME, "nsenter", "--mount", "--user", "--preserve-credentials"]

    def make_ready(self) -> None:
        os.chown(self.machine.folder, USER, USER)


@unittest.skipUnless(os.geteuid() == 0, "only root can start programs of other users")
class MeetTest(OfMachine):
    """Two containers of root's and a login shell of another user, on one GPU that has no room for all. They have no folder in
    common but /run/curb, and the containers have pids of their own. NVML lists the host's, as a real one does."""

    memory = "5GiB"
    POLICY = {
        "gpu": {"*": {"growth": {"wait": "60s"}}},
        "suspend": {"when_others_wait": "200ms", "deep": "never"},
        "log": {"level": "off"},
    }

    def setUp(self) -> None:
        super().setUp()
        self.shared = self.machine.folder / "run"
        for folder in (self.shared, self.shared / "public"):
            folder.mkdir()
            folder.chmod(0o1777)
        self.machine.folder.chmod(0o755)
        self.env = self.machine.under_curb(self.POLICY) | {"CURB_SIM_PROC": str(self.machine.folder / "proc")}
        del self.env["XDG_RUNTIME_DIR"]
        Path(self.env["CURB_POLICY"]).chmod(0o644)
        (self.machine.folder / "proc").mkdir()
        self.machine.run_program(self.machine.bare).ends()  # which makes the books
        Path(self.machine.bare["CURB_SIM_STATE"]).chmod(0o666)

    def inside(self, *command: object, user: bool = False, container: bool = True) -> list[str]:
        """A command with a /tmp and a /run of its own, in which only /run/curb is the machine's."""
        begin = (
            f'mount --bind /proc "{self.machine.folder}/proc" && mount -t tmpfs none /run && mkdir /run/curb && '
            f'mount --bind "{self.shared}" /run/curb'
        )
        own = "--pid --fork --ipc".split() if container else []
        if container:
            begin += " && mount -t proc proc /proc"
        become = BECOME if user else []
        return ["unshare", "--mount", *own, "sh", "-c", f'{begin} && exec "$@"', "sh", *become, *map(str, command)]

    def program(self, **where: Any) -> Process:
        variables = (f"{name}={value}" for name, value in self.env.items())
        return self.machine.begin(self.inside("env", *variables, *self.machine.program, **where), self.machine.bare)

    def shown(self, **where: Any) -> list[dict]:
        """What `curb ps` shows there: for each process on the GPU its use, with the process."""
        done = subprocess.run(
            self.inside("env", *(f"{name}={value}" for name, value in self.env.items() if name != "LD_PRELOAD"), BUILD / "bin/curb", "ps", "--json", **where),
            env=self.machine.bare, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        answer = json.loads(done.stdout)
        uses = [use | {"of": answer["processes"][use["process"]]} for gpu in answer["gpus"] for use in gpu["uses"]]
        return [use for use in uses if use["of"]["under_curb"]]

    def test_they_see_each_other_and_leave_for_each_other(self) -> None:
        shell = {"user": True, "container": False}
        one, two, login = self.program(), self.program(), self.program(**shell)
        one.asked("hold 2048", "held")
        login.asked("hold 1024", "held")
        begin = time.monotonic()
        two.asked("hold 1500", "held")  # there is room for it when one of the others has left
        self.assertLess(time.monotonic() - begin, PATIENCE_S / 2)
        for where in ({}, shell):
            with self.subTest(where=where):

                def sees_all(where: dict[str, Any] = where) -> bool:
                    self.uses = [use for use in self.shown(**where) if use["posted"]]
                    states = {use["of"]["state"] for use in self.uses}
                    return len(self.uses) == 3 and "napping" in states and states <= {"napping", "running"}

                self.assertTrue(within(sees_all, 20), self.uses)
        for process in (one, two, login):
            process.asked("check", "right")


if __name__ == "__main__":
    if subprocess.run([*NAMESPACES, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False).returncode:
        skip("no namespaces can be made here")
    run_cases()
