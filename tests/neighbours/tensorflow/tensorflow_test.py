#!/usr/bin/env python3
"""TensorFlow's wheel on the simulated driver: tensorflow_test.py BUILD CUDA12

TensorFlow brings stubs of the driver, sizes itself by the free memory, and has two allocators: one keeps all memory, one frees
it. CUDA12 has the libraries that it needs (tensorflow.cmake). The wheel is in CURB_TENSORFLOW, or is fetched into BUILD.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "common"), str(TESTS / "gpu")]
import tensorflow_site  # noqa: E402
from simulated import MIB, OfMachine, Process, within  # noqa: E402
from skipping import run_cases, skip  # noqa: E402

BUILD, CUDA12 = map(Path, sys.argv[1:3])
PROGRAM = Path(__file__).with_name("tensorflow_program.py")
CAP_MIB, GPU_MIB = 8192, 80 * 1024
PIECE_MIB = 256
CACHE_LEFT_MIB = 64
"""A pool may keep this much: less than its smallest part."""

try:
    PACKAGES = tensorflow_site.environment(BUILD)
except tensorflow_site.NoTensorFlow as why:
    skip(str(why))


class TensorFlowTest(OfMachine):
    memory = f"{GPU_MIB}MiB"

    def setUp(self) -> None:
        super().setUp()
        self.machine.bare |= PACKAGES | {"LD_LIBRARY_PATH": f"{CUDA12}:{BUILD}/sim", "TF_CPP_MIN_LOG_LEVEL": "3"}

    def start(self, environment: dict[str, str]) -> Process:
        with open(self.machine.folder / "stderr", "wb") as stderr:  # TensorFlow prints much
            return self.machine.start([sys.executable, PROGRAM], environment, stderr=stderr)

    def capped(self, **frameworks: Any) -> Process:
        policy: dict[str, Any] = {"gpu": {"*": {"cap": f"{CAP_MIB}MiB"}}}
        return self.start(self.machine.under_curb(policy | ({"frameworks": frameworks} if frameworks else {})))

    def limits_mib(self, process: Process) -> list[int]:
        """Returns the memory that TensorFlow takes for itself of each GPU that it sees."""
        process.tell("gpus")
        return [int(limit) // MIB for limit in process.line().split()]

    def filled(self, process: Process) -> tuple[str, int]:
        """Fills the GPU. Returns the type of the error, and the MiB of tensors until then."""
        process.tell("fill")
        error, pieces = process.line().split()
        return error, int(pieces) * PIECE_MIB

    def held_mib(self, process: Process, figure: str = "bytes") -> int:
        return self.machine.held()[process.pid, 0][figure] // MIB

    def test_without_curb_it_sees_the_gpu(self) -> None:
        (limit,) = self.limits_mib(self.start(self.machine.bare))
        self.assertGreater(limit, GPU_MIB * 0.9)

    def test_under_a_cap_it_sees_one_gpu_of_the_caps_size(self) -> None:
        (limit,) = self.limits_mib(self.capped())
        self.assertLess(limit, CAP_MIB)
        self.assertGreater(limit, CAP_MIB * 0.8)

    def test_at_the_cap_it_raises_its_own_error_and_goes_on(self) -> None:
        process = self.capped()
        error, filled = self.filled(process)
        self.assertEqual(error, "ResourceExhaustedError")
        self.assertGreater(filled, CAP_MIB * 0.8)
        self.assertLessEqual(self.held_mib(process, "high"), CAP_MIB)
        process.asked("drop")
        self.assertEqual(self.filled(process), (error, filled))

    def test_its_default_allocator_gives_nothing_back(self) -> None:
        process = self.capped(steer=False)
        self.filled(process)
        process.asked("drop")
        held = self.held_mib(process)
        answer = self.machine.curb("release", process.pid)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertEqual(self.held_mib(process), held)

    def test_steered_it_fills_the_cap_and_gives_back_on_the_signal(self) -> None:
        process = self.capped(steer=True)
        before = self.held_mib(process)
        error, filled = self.filled(process)
        self.assertEqual(error, "ResourceExhaustedError")
        self.assertGreater(filled, CAP_MIB * 0.85)
        self.assertLessEqual(self.held_mib(process, "high"), CAP_MIB)
        process.asked("drop")
        os.kill(process.pid, signal.SIGUSR1)
        came_back = within(lambda: self.held_mib(process) <= before + CACHE_LEFT_MIB)
        self.assertTrue(came_back, f"{self.held_mib(process)} MiB are still held, {before} before")
        self.assertEqual(self.filled(process), (error, filled))


if __name__ == "__main__":
    run_cases()
