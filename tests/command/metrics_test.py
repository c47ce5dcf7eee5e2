#!/usr/bin/env python3
"""The figures of `curb metrics` equal those in the simulated driver's books: metrics_test.py BUILD

Reads them with Prometheus's own parser. families_test has the rest.
"""

import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from simulated import MIB, OfMachine  # noqa: E402
from skipping import run_cases, skip  # noqa: E402

try:
    from prometheus_client.parser import text_string_to_metric_families as families_of
except ImportError as error:
    skip(f"{error.name} is not installed (scripts/setup test)")

ROOT = Path(__file__).resolve().parent.parent.parent
PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=ROOT / ".prometheus" / "usr" / "bin")


def values(families, name, **labels):
    return [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


class Metrics(OfMachine):
    gpus = 2

    def text(self, *options):
        run = self.machine.curb("metrics", *options)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return run.stdout

    def families(self):
        return list(families_of(self.text()))

    def test_figures_are_those_of_the_drivers_books(self):
        capped, bare = self.machine.run_program(), self.machine.run_program(self.machine.bare)
        capped.asked("pool")
        device = self.machine.books()[0]
        held = {process["pid"]: process["bytes"] for process in device["processes"]}
        families = self.families()
        for process in (capped, bare):
            self.assertEqual(values(families, "curb_nvml_used_bytes", pid=str(process.pid)), [held[process.pid]])
        self.assertEqual(values(families, "curb_held_bytes", pid=str(capped.pid), gpu="0"), [held[capped.pid]])
        self.assertEqual(sum(values(families, "curb_kind_bytes", pid=str(capped.pid), gpu="0")), held[capped.pid])
        self.assertGreaterEqual(held[capped.pid], 256 * MIB)
        self.assertEqual(values(families, "curb_held_bytes", pid=str(bare.pid)), [])
        self.assertEqual(values(families, "curb_cap_bytes", pid=str(capped.pid), gpu="0"), [8 << 30])
        self.assertEqual(values(families, "curb_gpu_used_bytes", gpu="0"), [device["used"]])
        self.assertEqual(values(families, "curb_gpu_free_bytes", gpu="0"), [device["total"] - device["used"]])
        # NVML's total includes the memory that the driver reserves.
        self.assertGreaterEqual(values(families, "curb_gpu_total_bytes", gpu="0")[0], device["total"])
        if os.geteuid() == 0:  # root sees processes of other tests too
            self.assertGreaterEqual(values(families, "curb_processes", state="capped")[0], 1)
        else:
            self.assertEqual(values(families, "curb_processes", state="capped"), [1])
        self.assertEqual(values(families, "curb_processes", state="uncapped"), [1])

    def test_what_a_release_gave_back_is_counted(self):
        process = self.machine.run_program()
        process.asked("pool")
        released = self.machine.curb("release", str(process.pid))
        self.assertEqual((released.returncode, released.stderr), (0, ""))
        own = {"pid": str(process.pid), "gpu": "0"}
        self.assertEqual(values(self.families(), "curb_released_bytes_total", step="pools", **own), [256 * MIB])

    def test_a_file_has_the_same_series_and_everybody_may_read_it(self):
        self.machine.run_program()
        file = self.machine.folder / "curb.prom"
        self.text("--textfile", str(file))
        self.assertEqual(file.stat().st_mode & 0o7777, 0o644)

        def series(text):
            return {(sample.name, *sorted(sample.labels.items())) for family in families_of(text) for sample in family.samples}

        self.assertGreater(len(series(file.read_text())), 20)
        self.assertEqual(series(file.read_text()), series(self.text()))
        wrong = self.machine.curb("metrics", "--textfile", "/nonexistent/curb.prom")
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("/nonexistent/curb.prom", wrong.stderr)

    @unittest.skipUnless(PROMTOOL, "promtool is not here (scripts/setup test)")
    def test_promtool_has_nothing_to_say(self):
        self.machine.run_program()
        file = self.machine.folder / "curb.prom"
        self.text("--textfile", str(file))
        run = subprocess.run([PROMTOOL, "check", "metrics"], input=file.read_text(), capture_output=True, text=True, check=False)
        self.assertEqual((run.returncode, run.stdout + run.stderr), (0, ""))


if __name__ == "__main__":
    run_cases()
