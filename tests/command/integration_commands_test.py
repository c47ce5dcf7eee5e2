#!/usr/bin/env python3
"""The files of `curb kernelspec install` and `curb cdi generate`: integration_commands_test.py BUILD

integrations/ tests them with Jupyter and podman.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from answers import faults  # noqa: E402
from simulated import OfMachine  # noqa: E402
from skipping import run_cases  # noqa: E402

# A kernel that allocates three times 1 GiB, and writes the results to the connection file.
KERNEL = """
import ctypes, sys
driver, context, block = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert driver.cuInit(0) == driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == driver.cuCtxSetCurrent(context) == 0
results = [driver.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1 << 30)) for _ in range(3)]
open(sys.argv[2], "w").write(str(results))
"""
ROOT = Path(__file__).resolve().parent.parent.parent
CAPPED = "[0, 2, 2]"  # under 2 GiB, the context included


class Command(OfMachine):
    def setUp(self) -> None:
        super().setUp()
        self.folder = self.machine.folder

    def curb(self, *words: object, status: int = 0, says: str = "", **more: str) -> str:
        done = self.machine.curb(*words, cwd=self.folder, **more)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertIn(says, done.stderr)
        return done.stdout


class Kernelspec(Command):
    def setUp(self) -> None:
        super().setUp()
        bin_folder = self.folder / "bin"
        bin_folder.mkdir()
        (bin_folder / "python3").symlink_to(sys.executable)
        modules = self.folder / "modules"
        modules.mkdir()
        (modules / "ipykernel_launcher.py").write_text(KERNEL)
        self.python = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": str(modules)}

    def install(self, *words: object, status: int = 0, says: str = "", **more: str) -> str:
        return self.curb("kernelspec", "install", *words, status=status, says=says, **{**self.python, **more})

    def spec(self, name: str = "curb", data: str = ".local/share/jupyter") -> Any:
        return json.loads((self.folder / data / "kernels" / name / "kernel.json").read_text())

    def test_the_kernel_runs_under_the_cap(self) -> None:
        self.assertIn("Python 3 (2GiB of each GPU)", self.install("--cap", "2GiB", "--nap", "10m", "--steer"))
        spec = self.spec()
        self.assertEqual(spec["argv"][1:-5], ["run", "--cap", "2GiB", "--nap", "10m", "--steer", "--"])
        self.assertEqual(spec["argv"][-4:], ["-m", "ipykernel_launcher", "-f", "{connection_file}"])
        self.assertEqual((spec["language"], spec["display_name"]), ("python", "Python 3 (2GiB of each GPU)"))
        connection = self.folder / "connection.json"
        words = [word.replace("{connection_file}", str(connection)) for word in spec["argv"]]
        subprocess.run(words, env={**self.machine.bare, **self.python}, cwd="/", check=True)
        self.assertEqual(connection.read_text(), CAPPED)

    def test_names_that_jupyter_has(self) -> None:
        for name in ("..", ".hidden", "-x", "a/b"):
            self.install("--name", name, status=125, says="--name: ")
        self.assertIn("jupyter kernelspec remove upper", self.install("--name", "UPPER"))

    def test_places(self) -> None:
        self.install("--prefix", "venv", "--name", "small")
        self.assertEqual(self.spec("small", "venv/share/jupyter")["display_name"], "Python 3 (curb)")
        self.install(XDG_DATA_HOME=str(self.folder / "data"))
        self.spec(data="data/jupyter")
        self.install(JUPYTER_DATA_DIR=str(self.folder / "jupyter"), XDG_DATA_HOME="/nowhere")
        self.spec(data="jupyter")
        self.install(status=125, says="HOME is not set; name a place: --prefix PATH", HOME="")

    def test_a_kernel_that_is_there_stays(self) -> None:
        self.install("--cap", "2GiB")
        self.install("--cap", "3GiB", status=125, says="kernel.json exists already; choose another --name, or --replace it")
        self.assertIn("2GiB", self.spec()["argv"])
        self.install("--cap", "3GiB", "--replace")
        self.assertIn("3GiB", self.spec()["argv"])

    def test_another_language_and_a_policy(self) -> None:
        (self.folder / "job.json").write_text('{"version": 1}')
        command = ["./kernel.sh", "{connection_file}"]
        self.install("--policy", "job.json", "--language", "R", "--name", "r", "--display-name", 'A "GPU"', "--", *command)
        spec = self.spec("r")
        self.assertEqual(spec["argv"][1:], ["run", "--policy", str(self.folder / "job.json"), "--", *command])
        self.assertEqual((spec["language"], spec["display_name"], spec["metadata"]), ("R", 'A "GPU"', {}))

    def test_the_kernel_finds_files_that_were_named_in_another_folder(self) -> None:
        self.install("--trace", "run-%p.json", "--log", "info:curb.log")
        self.assertEqual(self.spec()["argv"][2:6], ["--trace", f"{self.folder}/run-%p.json", "--log", f"info:{self.folder}/curb.log"])

    def test_what_would_stop_the_kernel_stops_the_installation(self) -> None:
        (self.folder / "wrong.json").write_text("{")
        for words, why in (
            (["--cap", "8"], 'did you mean "8GiB"'),
            (["--policy", "wrong.json"], "wrong.json:1:"),
            (["--policy", ""], "--policy: the path is empty"),
            (["--nap", "soon"], "--nap"),
            (["--trace", "run.json"], "write %p in the name"),
            (["--name", "a/b"], "'a/b' is not letters, digits"),
            (["--", "python3"], "the command has no word {connection_file}"),
        ):
            with self.subTest(words):
                self.install(*words, status=125, says=why)
        self.install(status=125, says="has no ipykernel; run: ", PYTHONPATH="")
        self.install(status=125, says="there is no python3 that starts", PATH="/nowhere")
        self.assertFalse((self.folder / ".local").exists())

    def test_a_parent_that_ignores_sigchld(self) -> None:
        command = ["env", "--ignore-signal=CHLD", BUILD / "bin/curb", "kernelspec", "install", "--cap", "2GiB"]
        subprocess.run(command, env={**self.machine.bare, **self.python}, stdin=subprocess.DEVNULL, check=True)
        self.assertIn("2GiB", self.spec()["argv"])

    def test_json(self) -> None:
        answer = json.loads(self.install("--cap", "2GiB", "--json"))
        self.assertEqual(faults("kernelspec-install", answer), [])
        self.assertEqual(answer["argv"], self.spec()["argv"])


class Module(Command):
    """The Python module, as pip would install it."""

    def setUp(self) -> None:
        super().setUp()
        site = self.folder / "lib/python3/site-packages"
        info = site / "curb_gpu-1.dist-info"
        info.mkdir(parents=True)
        (site / "curb").symlink_to(ROOT / "packaging/python/curb")
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: curb-gpu\nVersion: 1\n")
        (info / "RECORD").write_text("../../../bin/curb,,\n")
        (self.folder / "bin").mkdir()
        (self.folder / "bin/curb").symlink_to(BUILD / "bin/curb")
        self.environment = {**self.machine.bare, "PYTHONPATH": str(site)}

    def python(self, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", program], env=self.environment | environment, capture_output=True, text=True, check=False)

    def test_a_name_that_is_not_ascii_is_read_in_any_locale(self) -> None:
        program = self.machine.run_program(self.machine.under_curb(CURB_POLICY=str(self.machine.policy({}, "größe.json"))))
        for locale in ({"LC_ALL": "C", "PYTHONUTF8": "0"}, {"LC_ALL": "C.UTF-8"}):
            with self.subTest(locale):
                done = self.python(f"import curb; print(ascii(curb.status({program.pid})))", **locale)
                self.assertIn("gr\\xf6\\xdfe.json", done.stdout, done.stderr)

    def test_the_magic_prints_sizes_as_the_command_does(self) -> None:
        without_ipython = (
            "import sys, types; error = types.ModuleType('IPython.core.error'); error.UsageError = Exception; "
            "sys.modules.update(dict.fromkeys(('IPython', 'IPython.core', 'IPython.core.error'), error)); "
        )
        done = self.python(without_ipython + "from curb._magic import size; print([size(n << 20) for n in (1, 1000, 1022, 1536, 1640)])")
        self.assertEqual(done.stdout.strip(), "['1 MiB', '1000 MiB', '1022 MiB', '1.5 GiB', '1.6 GiB']", done.stderr)


class Cdi(Command):
    def generate(self, *words: object, status: int = 0, says: str = "") -> str:
        return self.curb("cdi", "generate", "--output", "cdi/curb.json", "--folder", "files", *words, status=status, says=says)

    def test_a_device_for_each_cap(self) -> None:
        self.assertIn("podman run --device curb.dev/cap=4GiB", self.generate("--cap", "4GiB", "--cap", "75%"))
        spec = json.loads((self.folder / "cdi/curb.json").read_text())
        self.assertEqual((spec["kind"], [one["name"] for one in spec["devices"]]), ("curb.dev/cap", ["4GiB", "75percent"]))
        mounts = {mount["containerPath"]: Path(mount["hostPath"]) for mount in spec["containerEdits"]["mounts"]}
        self.assertEqual(mounts["/etc/ld.so.preload"].read_text(), "/usr/lib/curb/libcurb.so\n")
        self.assertEqual(mounts["/usr/lib/curb/libcurb.so"], BUILD / "lib/libcurb.so")
        self.assertEqual(mounts["/usr/bin/curb"], BUILD / "bin/curb")
        (mount,) = spec["devices"][1]["containerEdits"]["mounts"]
        self.assertEqual(mount["containerPath"], "/etc/curb")
        ceiling = Path(mount["hostPath"], "policy.json")
        self.assertEqual(json.loads(ceiling.read_text())["gpu"]["*"]["cap"], "75%")
        self.assertIn("valid", self.curb("policy", "check", ceiling))

    def test_names_of_devices(self) -> None:
        self.generate("--cap", "8 GiB", "--cap", "8GiB", "--cap", "12.5%", "--cap", "12.5 %")
        names = [one["name"] for one in json.loads((self.folder / "cdi/curb.json").read_text())["devices"]]
        self.assertEqual(names, ["8GiB", "12.5percent"])

    def test_edits_of_a_ceiling_stay(self) -> None:
        self.generate("--cap", "4GiB")
        ceiling = self.folder / "files/4GiB/policy.json"
        edited = ceiling.read_text().replace("4GiB", "3GiB")
        ceiling.write_text(edited)
        self.generate("--cap", "4GiB", "--cap", "8GiB")
        self.assertEqual(ceiling.read_text(), edited)

    def test_faults(self) -> None:
        self.generate(status=125, says="which caps?")
        self.generate("--cap", "8", status=125, says='did you mean "8GiB"')
        (self.folder / "files").write_text("")
        self.generate("--cap", "8GiB", status=125, says="cannot make ")

    def test_json(self) -> None:
        answer = json.loads(self.generate("--cap", "4GiB", "--json"))
        self.assertEqual(faults("cdi-generate", answer), [])
        self.assertEqual(answer["devices"], ["curb.dev/cap=4GiB"])


if __name__ == "__main__":
    BUILD = Path(sys.argv[1]).resolve()
    run_cases()
