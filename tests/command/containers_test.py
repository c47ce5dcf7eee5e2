#!/usr/bin/env python3
"""curb reaches processes in the namespaces of containers from outside: containers_test.py BUILD"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from simulated import MIB, PATIENCE_S, OfMachine, within  # noqa: E402
from skipping import run_cases, skip  # noqa: E402

BUILD = Path(sys.argv[1]).resolve()
NAMESPACES = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--mount", "--pid", "--fork", "--mount-proc"]


class ContainersTest(OfMachine):
    """Starts a program in a pid namespace of its own, with a runtime directory that only its mount namespace has."""

    def setUp(self) -> None:
        super().setUp()
        hide = 'mount -t tmpfs -o mode=700 none "$XDG_RUNTIME_DIR" && exec "$@"'
        program = [str(BUILD / "tests/scenarios"), "runs_commands"]
        self.process = self.machine.start(
            [*NAMESPACES, "sh", "-c", hide, "sh", "env", f"LD_PRELOAD={BUILD / 'lib/libcurb.so'}", *program],
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
        inside = ["nsenter", "--target", pid, "--mount", *([] if os.geteuid() == 0 else ["--user", "--preserve-credentials"])]
        swap = 'mv "$0/curb" "$0/other" && ln -s /proc/1/root/tmp "$0/curb"'
        subprocess.run([*inside, "sh", "-c", swap, str(self.machine.runtime)], check=True, timeout=PATIENCE_S)
        failed = self.machine.curb("release", pid)
        self.assertEqual(failed.returncode, 1)
        self.assertIn("runs in a container", failed.stderr)


if __name__ == "__main__":
    if subprocess.run([*NAMESPACES, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False).returncode:
        skip("no namespaces can be made here")
    run_cases()
