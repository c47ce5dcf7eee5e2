#!/usr/bin/env python3
"""Holds what commands answer with --json against cli/schemas/: answers_test.py BUILD

Of the examples and of files that are wrong, of processes on the simulated driver, and of machines that are made up.
metrics, report and replay have tests of their own.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from answers import FILES, VALIDATORS, faults  # noqa: E402
from simulated import Machine  # noqa: E402
from skipping import run_cases  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = sorted((ROOT / "config/examples").glob("*.json"))
NOBODY = 2147483647
"""The pid of no process."""


class OfMachine(unittest.TestCase):
    gpus = 1

    def setUp(self) -> None:
        self.machine = Machine(BUILD, gpus=self.gpus).__enter__()
        self.addCleanup(self.machine.__exit__)

    def answer(self, schema: str, *words: object, status: int = 0, **more: str) -> Any:
        """What a command answers, which fits its schema."""
        done = self.machine.curb(*words, **more)
        self.assertEqual(done.returncode, status, f"{words}: {done.stdout}{done.stderr}")
        answer = json.loads(done.stdout)
        self.assertEqual(faults(schema, answer), [], answer)
        return answer


class Schemas(unittest.TestCase):
    def test_each_is_one_and_describes_all_its_members(self) -> None:
        def look(at: Any, path: str) -> None:
            if path.endswith("/labels"):  # docs/METRICS.md has them
                return
            for name, member in at.get("properties", {}).items():
                self.assertTrue("description" in member or "$ref" in member or "properties" in member, f"{path}/{name}")
                look(member, f"{path}/{name}")
            for inner in [*at.get("oneOf", []), *([at["items"]] if isinstance(at.get("items"), dict) else [])]:
                look(inner, path)
            for name, inner in at.get("$defs", {}).items():
                look(inner, f"{path}#{name}")

        self.assertGreater(len(FILES), 10)
        for name, validator in VALIDATORS.items():
            with self.subTest(name):
                validator.check_schema(validator.schema)
                look(validator.schema, name)


class Policy(OfMachine):
    def wrong_files(self) -> list[Path]:
        texts = {"not.json": "{", "key.json": '{"version":1,"gqu":{}}', "value.json": '{"version":1,"gpu":{"*":{"cap":-1}}}'}
        for name, text in texts.items():
            (self.machine.folder / name).write_text(text)
        return [self.machine.folder / name for name in texts]

    def test_check(self) -> None:
        for file in EXAMPLES:
            self.assertTrue(self.answer("policy-check", "policy", "check", "--json", file)["valid"])
        for file in self.wrong_files():
            self.assertFalse(self.answer("policy-check", "policy", "check", "--json", file, status=1)["valid"])
        answer = self.answer("policy-check", "policy", "check", "--json", self.machine.folder / "none.json", status=2)
        self.assertFalse(answer["read"])

    def test_show_and_explain(self) -> None:
        for file in EXAMPLES:
            with self.subTest(file.name):
                self.answer("policy-show", "policy", "show", "--json", file)
                self.answer("policy-show", "policy", "show", "--json", file, CURB_CAP="1GiB")
                for command in (["python3", "train_bert.py"], ["no-such-program"]):
                    self.answer("policy-explain", "policy", "explain", "--json", file, "--", *command)
        for file in self.wrong_files():
            self.answer("policy-show", "policy", "show", "--json", file, status=1)
            self.answer("policy-explain", "policy", "explain", "--json", file, "--", "true", status=1)


class ReleaseAndMoves(OfMachine):
    def test_release_suspend_and_resume(self) -> None:
        pid = self.machine.told().pid
        self.assertIn("steps", self.answer("release", "release", "--json", pid)[0])
        self.assertIn("error", self.answer("release", "release", "--json", NOBODY, status=1)[0])
        everybody = self.answer("release", "release", "--all", "--json")
        self.assertIn(pid, [one["pid"] for one in everybody])  # root asks others' processes too
        self.assertTrue(self.answer("suspend", "suspend", "--json", pid)["suspended"])
        self.assertFalse(self.answer("suspend", "suspend", "--json", pid, status=1)["suspended"])
        self.assertTrue(self.answer("resume", "resume", "--json", pid)["resumed"])
        self.assertFalse(self.answer("resume", "resume", "--json", pid, status=1)["resumed"])


class Steering(OfMachine):
    gpus = 2

    def setUp(self) -> None:
        super().setUp()
        self.write("8GiB")
        environment = self.machine.under_curb(CURB_POLICY=str(self.machine.folder / "job.json"))
        self.pid = self.machine.told(environment).pid

    def write(self, cap: str, gpu: str = "*") -> None:
        self.machine.policy({"gpu": {gpu: {"cap": cap}}})

    def cap(self, pid: int, *words: str, status: int = 0) -> Any:
        return self.answer("cap", "cap", pid, *words, "--json", status=status)

    def reload(self, pid: int, status: int = 0) -> Any:
        return self.answer("policy-reload", "policy", "reload", pid, "--json", status=status)

    def test_cap(self) -> None:
        first, second = self.cap(self.pid, "6GiB")["gpus"]
        self.assertEqual((first["before"], first["now"], first["live_cap"]), (8 << 30, 6 << 30, "6GiB"))
        self.assertEqual(second["ordinal"], 1)
        (one,) = self.cap(self.pid, "50%", "--gpu", "cuda:1")["gpus"]
        self.assertEqual((one["now"], one["live_cap"]), (40 << 30, "50%"))
        for gpu in self.cap(self.pid, "--reset")["gpus"]:
            self.assertEqual((gpu["now"], gpu["live_cap"], gpu["ceiling"]), (8 << 30, None, False))
        self.machine.policy({})
        self.reload(self.pid)
        self.assertIsNone(self.cap(self.pid, "--reset")["gpus"][0]["now"])
        self.assertIn("cuda:7", self.cap(self.pid, "1GiB", "--gpu", "cuda:7", status=1)["error"])
        self.assertIn("no process", self.cap(NOBODY, "1GiB", status=1)["error"])

    def test_policy_reload(self) -> None:
        self.assertEqual(self.reload(self.pid)["changes"], [])
        self.write("6GiB")  # which the process follows by itself, too: it may have done so before it is asked
        self.assertIn(self.reload(self.pid)["changes"], ([], ['/gpu/*/cap: "8GiB" -> "6GiB"']))
        self.write("1GiB", gpu="cuda:9")
        self.assertEqual(len(self.reload(self.pid)["notes"]), 1)
        (self.machine.folder / "job.json").write_text("{")
        self.assertEqual(len(self.reload(self.pid, status=1)["errors"]), 1)
        self.assertIn("no process", self.reload(NOBODY, status=1)["error"])


class Doctor(OfMachine):
    def doctor(self, *words: object, **more: str) -> Any:
        done = self.machine.curb("doctor", "--json", *words, **more)
        answer = json.loads(done.stdout)
        self.assertEqual(faults("doctor", answer), [], answer)
        healthy = all(one["result"] != "problem" for one in answer["findings"])
        self.assertEqual((done.returncode, answer["healthy"]), (0 if healthy else 1, healthy))
        return answer

    def test_a_machine(self) -> None:
        self.assertTrue(self.doctor()["healthy"])

    def test_a_machine_with_troubles(self) -> None:
        self.doctor(CURB_SIM_NVML="broken", CURB_CAP="8Gib", XDG_RUNTIME_DIR="/nonexistent", CUDA_VISIBLE_DEVICES="")
        self.doctor(CURB_SIM_MIG="1", CURB_SIM_PERSISTENCE="off", CURB_LIBRARY="/nonexistent")
        self.doctor(LD_LIBRARY_PATH="/nonexistent")

    def test_a_capped_process(self) -> None:
        process = self.machine.told()
        answer = self.doctor(process.pid)
        self.assertEqual(answer["pid"], process.pid)
        self.assertTrue(answer["healthy"], answer)
        self.doctor()

    def test_a_process_without_curb(self) -> None:
        self.assertEqual([one["check"] for one in self.doctor(os.getpid())["findings"]], ["preload"])

    def test_every_check_is_in_the_schema(self) -> None:
        sources = "".join(path.read_text() for path in (ROOT / "cli").glob("doctor_*.cpp"))
        written = set(re.findall(r'kCheck = "([^"]+)"', sources))
        written |= set(re.findall(r'\b(?:ok|note|problem)\(\s*"([a-z.-]+)",', sources))
        written |= set(*re.findall(r'of_ceiling \? "(\w+)" : "(\w+)"', sources))
        findings = VALIDATORS["doctor"].schema["properties"]["findings"]
        self.assertEqual(written, set(findings["items"]["properties"]["check"]["enum"]))


class Ps(OfMachine):
    gpus = 2

    def test_made_up_machines(self) -> None:
        lines = subprocess.run([BUILD / "tests/ps_texts"], stdout=subprocess.PIPE, text=True, check=True).stdout
        documents = [json.loads(line) for line in lines.splitlines()]
        self.assertEqual(len(documents), 6)
        for document in documents:
            self.assertEqual(faults("ps", document), [])
        for path, wrong in [
            (["gpus", 0, "uses", 0, "pid"], 0),
            (["gpus", 0, "uses", 1, "books", "held"], -1),
            (["processes", 0, "status", "refusals", 0, "why"], "hunger"),
            (["processes", 0, "status", "policy", "file"], 1),
            (["processes", 0, "unheard_of"], True),
        ]:
            with self.subTest(path):  # a schema that lets anything pass is none
                at = spoilt = copy.deepcopy(documents[1])
                for key in path[:-1]:
                    at = at[key]
                at[path[-1]] = wrong
                self.assertTrue(faults("ps", spoilt))

    def test_a_machine_with_processes(self) -> None:
        one, other = self.machine.told(), self.machine.told(self.machine.bare)
        self.answer("ps", "ps", "--json")
        self.answer("ps", "ps", "--json", one.pid)
        answer = self.answer("ps", "ps", "--json", one.pid, other.pid, NOBODY, status=1)
        self.assertEqual([error["pid"] for error in answer["errors"]], [other.pid, NOBODY])


if __name__ == "__main__":
    BUILD = Path(sys.argv[1]).resolve()
    run_cases()
