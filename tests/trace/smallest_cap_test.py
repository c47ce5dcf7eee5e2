#!/usr/bin/env python3
"""The caps that curb report prints serve the recorded run: smallest_cap_test.py BUILD

A program is recorded, then runs under the printed option: nothing is refused. With a little less something is.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from simulated import OfMachine, Process  # noqa: E402
from skipping import run_cases  # noqa: E402

MIB = 2**20
OUT_OF_MEMORY = 2
CODE = "curb-sim-module data=8MiB code=90MiB once=40MiB\nkernel deep local=2048\nkernel mallocs malloc\n"
# A step is the name of a function of Program and its arguments. Each script fills the device most with its last step or
# the one before.
SCRIPTS = {
    "blocks": "context, take a 700, take b 300, drop a, take c 900",
    "a block at the end of small ones": "context, take a 0.001, take b 0.001, drop a, drop b, take c 400, take d 0.001",
    "code before the peak": "context, load, launch deep, take a 500, drop a, take b 600",
    "code after the peak": "context, take a 500, take b 300, load, launch deep",
    "code that is loaded far from the cap, and a block at once": "context, load, take a 1200",
    "a heap that the driver takes later": "context, heap 300, take a 400, load, launch mallocs",
    "a heap that the driver never takes": "context, heap 300, take a 400",
    "a context made late": "context, take a 600, context, drop a, take b 100",
    "a pool beside blocks": "context, take_async a 300, take b 200, drop_async a, take c 250",
    "a pool with holes": "context, take_async a 20, take_async b 20, take_async c 20, take_async d 20, drop_async b, "
                         "drop_async d, take e 300, take_async f 20",
    "a pool whose memory blocks take": "context, keep, take_async a 400, drop_async a, take b 380",
    "a pool that takes its memory again": "context, keep, take_async a 400, drop_async a, take b 380, drop b, take_async c 390",
    "graphs": "context, take a 100, graph 200, take b 100, graph 70",
    "an array": "context, take a 100, array 64, array 1",
}  # fmt: skip

# Steps of two processes.
JOBS = {
    "both at once": [(0, "context"), (1, "context"), (0, "take a 600"), (1, "take a 900")],
    "one peak after the other": [(0, "context"), (0, "take a 900"), (0, "drop a"), (1, "context"), (1, "take a 700")],
    "one process after the other": [(0, "context"), (0, "take a 900"), (0, "end"), (1, "context"), (1, "take a 700")],
    "a context of the second at the peak": [(0, "context"), (0, "take a 900"), (1, "context")],
    "a pool that the other process needs":
        [(0, "context"), (0, "keep"), (0, "take_async a 400"), (0, "drop_async a"), (1, "context"), (1, "take b 600")],
    "code of both": [(0, "context"), (0, "load"), (0, "launch deep"), (1, "context"), (0, "take a 500"), (1, "take a 300"), (1, "load"),
                     (1, "launch deep")],
}  # fmt: skip


class Program:
    """Runs steps, one a line, and answers each with "ok" or "refused". Holds all that it takes until its end."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.blocks: dict[str, ctypes.c_uint64] = {}
        self.module = ctypes.c_void_p()
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        if result := getattr(self.cuda, name)(*arguments):
            raise MemoryError if result == OUT_OF_MEMORY else SystemExit(f"{name}: {result}")

    def context(self) -> None:
        self.call("cuCtxCreate_v2", ctypes.byref(ctypes.c_void_p()), 0, 0)

    def take(self, name: str, mebibytes: str) -> None:
        self.allocate("cuMemAlloc_v2", name, mebibytes)

    def take_async(self, name: str, mebibytes: str) -> None:
        self.allocate("cuMemAllocAsync", name, mebibytes, None)

    def allocate(self, call: str, name: str, mebibytes: str, *rest: Any) -> None:
        self.blocks[name] = ctypes.c_uint64()
        self.call(call, ctypes.byref(self.blocks[name]), ctypes.c_size_t(int(float(mebibytes) * MIB)), *rest)

    def drop(self, name: str) -> None:
        self.call("cuMemFree_v2", self.blocks.pop(name))

    def drop_async(self, name: str) -> None:
        self.call("cuMemFreeAsync", self.blocks.pop(name), None)
        self.call("cuStreamSynchronize", None)

    def keep(self) -> None:
        """Has the pool keep what is freed."""
        pool, all_of_it, threshold = ctypes.c_void_p(), ctypes.c_uint64(2**64 - 1), 4
        self.call("cuDeviceGetDefaultMemPool", ctypes.byref(pool), 0)
        self.call("cuMemPoolSetAttribute", pool, threshold, ctypes.byref(all_of_it))

    def graph(self, mebibytes: str) -> None:
        stream, graph, executable, block = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        self.call("cuStreamBeginCapture_v2", stream, 0)
        self.call("cuMemAllocAsync", ctypes.byref(block), ctypes.c_size_t(int(mebibytes) * MIB), stream)
        self.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
        self.call("cuGraphLaunch", executable, stream)

    def array(self, mebibytes: str) -> None:
        floats, rows = 0x20, int(mebibytes) * MIB // 4096

        class Description(ctypes.Structure):  # CUDA_ARRAY_DESCRIPTOR
            _fields_ = [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("format", ctypes.c_int), ("channels", ctypes.c_uint)]

        self.call("cuArrayCreate_v2", ctypes.byref(ctypes.c_void_p()), ctypes.byref(Description(1024, rows, floats, 1)))

    def heap(self, mebibytes: str) -> None:
        self.call("cuCtxSetLimit", 2, ctypes.c_size_t(int(mebibytes) * MIB))

    def load(self) -> None:
        self.call("cuModuleLoadData", ctypes.byref(self.module), CODE.encode())

    def launch(self, kernel: str) -> None:
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self.module, kernel.encode())
        self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)

    def run(self) -> None:
        print("ready", flush=True)
        for line in sys.stdin:
            name, *arguments = line.split()
            answer = "ok"
            try:
                step: Callable[..., None] = getattr(self, name)
                step(*arguments)
            except MemoryError:
                answer = "refused"
            print(answer, flush=True)


def less(option: str) -> str:
    """Returns the option with a cap that is one printed step lower: 0.01 GiB, or a MiB."""
    head, number, unit = re.fullmatch(r"(.*?)([0-9.]+)(GiB|MiB)", option).groups()  # type: ignore[union-attr]
    return f"{head}{float(number) - (0.01 if unit == 'GiB' else 1):.2f}{unit}"


class SmallestCapTest(OfMachine):
    def begin(self, *options: str) -> Process:
        """Starts the program under curb run."""
        environment = self.machine.bare | {"CURB_JOB": f"smallest_cap-{os.getpid()}-{self._testMethodName}"}
        curb = [self.machine.build / "bin/curb", "run", "--quiet", "--log", "off", *options, "--"]
        return self.machine.begin([*curb, sys.executable, __file__, "program"], environment)

    def refusals(self, script: list[tuple[int, str]], *options: str) -> int:
        """Runs the steps, each in the process of its number, all under these options. Returns how many were refused."""
        processes = [self.begin(*options) for _ in range(1 + max(number for number, _ in script))]
        refused = 0
        for number, step in script:
            if step == "end":
                self.assertEqual(processes[number].ends(), 0)
            else:
                refused += processes[number].answer(step) == "refused"
        for process in processes:
            self.assertEqual(process.ends(), 0)
        return refused

    def recorded(self, script: list[tuple[int, str]], *options: str) -> list[str]:
        """Records the steps. Returns the traces."""
        folder = self.machine.folder
        for old in folder.glob("rank-*.json"):
            old.unlink()
        self.assertEqual(self.refusals(script, "--trace", str(folder / "rank-%p.json"), *options), 0)
        return sorted(str(file) for file in folder.glob("rank-*.json"))

    def printed(self, option: str, *words: str) -> list[str]:
        """Returns the options to paste that a command prints as text."""
        done = self.machine.curb(*words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return re.findall(rf"({option} \S+[A-Za-z])[, ]", done.stdout)

    def holds(self, script: list[tuple[int, str]], paste: str) -> None:
        self.assertEqual(self.refusals(script, *paste.split()), 0, paste)
        self.assertGreater(self.refusals(script, *less(paste).split()), 0, f"{paste} is more than the run needs")

    def test_the_printed_cap_serves_the_run_and_a_step_less_does_not(self) -> None:
        for what, text in SCRIPTS.items():
            script = [(0, step) for step in text.split(", ")]
            for options in ([], ["--cap", "40GiB", "--growth", "64MiB:512MiB:1ms", "--wait", "10s"]):
                with self.subTest(what=what, options=options):
                    (trace,) = self.recorded(script, *options)
                    (paste,) = self.printed("--cap", "report", trace)
                    self.assertEqual(self.printed("--cap", "replay", trace, "--wait", "1s")[-1], paste)
                    self.holds(script, paste)

    def test_the_printed_cap_of_a_job_serves_all_its_processes(self) -> None:
        for what, script in JOBS.items():
            for options in ([], ["--job-cap", "40GiB"]):
                with self.subTest(what=what, options=options):
                    traces = self.recorded(script, *options)
                    self.assertEqual(len(traces), 2)
                    (paste,) = self.printed("--job-cap", "report", *traces)
                    self.assertEqual(self.printed("--job-cap", "replay", *traces, "--wait", "1s"), [paste])
                    self.holds(script, paste)
                    *_, each = self.printed("--cap", "replay", *traces, "--wait", "1s")
                    self.holds(script, each)


if __name__ == "__main__":
    if sys.argv[1] == "program":
        Program().run()
    else:
        run_cases()
