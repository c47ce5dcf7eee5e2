"""A simulated machine with processes on it, as the tests of commands look at one from outside."""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

MIB = 1 << 20


class Process:
    """A program that does what it is told line by line: see tests/process/control_scenarios.cpp."""

    def __init__(self, command, environment):
        self.child = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.pid = self.child.pid
        self.expect("ready")

    def expect(self, answer):
        line = self.child.stdout.readline().rstrip("\n")
        if line != answer:
            self.child.kill()
            raise AssertionError(f"{line!r} instead of {answer!r}: {self.child.stderr.read()}")

    def tell(self, line, answer="ok"):
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()
        self.expect(answer)

    def end(self):
        self.child.kill()
        for pipe in (self.child.stdin, self.child.stdout, self.child.stderr):
            pipe.close()
        self.child.wait()


class Machine:
    def __init__(self, curb, sim, scenarios):
        self.curb, self.sim, self.scenarios = Path(curb).resolve(), Path(sim).resolve(), Path(scenarios).resolve()
        self.temporary = tempfile.TemporaryDirectory(prefix="curb-")
        self.folder = Path(self.temporary.name)
        self.processes = []
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("CURB_", "LD_"))},
            "XDG_RUNTIME_DIR": str(self.folder),
            "CURB_SIM_STATE": str(self.folder / "state"),
            "CURB_SIM_GPUS": "2",
            "LD_LIBRARY_PATH": str(self.sim),
        }
        (self.folder / "curb").mkdir(mode=0o700)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.end()
        self.temporary.cleanup()

    def start(self, *options, program=None, capped=True, **environment):
        command = program or [self.scenarios, "does_what_it_is_told"]
        if capped:
            command = [self.curb, "run", *options, "--", *command]
        process = Process(command, {**self.environment, **environment})
        self.processes.append(process)
        deadline = time.monotonic() + 10
        while capped and not list((self.folder / "curb").glob(f"{process.pid}-*.sock")):  # its thread may need a moment
            if time.monotonic() > deadline:
                raise AssertionError(f"{process.pid} has no socket")
            time.sleep(0.005)
        return process

    def ask(self, *words, **options):
        """curb with these words, as it runs on this machine."""
        return subprocess.run(
            [self.curb, *words], env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **options
        )

    def books(self):
        """By device: total, used, and by pid what the driver itself says that the process holds."""
        run = subprocess.run(
            [self.curb.parent / "curb-sim-books", self.environment["CURB_SIM_STATE"]], capture_output=True, text=True, check=True
        )
        return json.loads(run.stdout)["devices"]
