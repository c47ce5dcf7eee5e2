#!/usr/bin/env python3
"""Holds what commands answer with --json against cli/schemas/: answers_test.py BUILD

Those of curb policy for the examples and for files that are wrong, and those of curb release, suspend and resume for a
process on the simulated driver. ps, doctor, metrics, report and replay have tests of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from sockets import wait_for_socket

try:
    from jsonschema import Draft202012Validator
except ImportError:
    print("answers_test: skipped: python3-jsonschema >= 4 is not installed (scripts/setup test)")
    sys.exit(77)

ROOT = Path(__file__).resolve().parent.parent.parent
SCHEMAS = {path.name.removesuffix(".schema.json"): json.loads(path.read_text()) for path in (ROOT / "cli/schemas").glob("*.json")}
EXAMPLES = sorted((ROOT / "config/examples").glob("*.json"))
BUILD = Path(sys.argv.pop()).resolve() if len(sys.argv) > 1 else ROOT / "build"


class Answers(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory(prefix="curb-answers-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder),
            "LD_LIBRARY_PATH": str(BUILD / "sim"),
            "CURB_SIM_STATE": str(self.folder / "machine"),
        }

    def curb(self, *words: str, status: int = 0, **variables: str) -> str:
        done = subprocess.run(
            [str(BUILD / "bin/curb"), *words],
            env=self.environment | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual(done.returncode, status, f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    def holds(self, schema: str, answer: str) -> Any:
        document = json.loads(answer)
        faults = [f"{fault.json_path}: {fault.message}" for fault in Draft202012Validator(SCHEMAS[schema]).iter_errors(document)]
        self.assertEqual(faults, [], answer)
        return document

    def wrong_files(self) -> list[Path]:
        texts = {"not.json": "{", "key.json": '{"version":1,"gqu":{}}', "value.json": '{"version":1,"gpu":{"*":{"cap":-1}}}'}
        for name, text in texts.items():
            (self.folder / name).write_text(text)
        return [self.folder / name for name in texts]

    def test_every_schema_is_one_and_describes_all_its_members(self) -> None:
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

        for name, schema in SCHEMAS.items():
            with self.subTest(name):
                Draft202012Validator.check_schema(schema)
                look(schema, name)

    def test_policy_check(self) -> None:
        for file in EXAMPLES:
            self.assertTrue(self.holds("policy-check", self.curb("policy", "check", "--json", str(file)))["valid"])
        for file in self.wrong_files():
            self.assertFalse(self.holds("policy-check", self.curb("policy", "check", "--json", str(file), status=1))["valid"])
        answer = self.curb("policy", "check", "--json", str(self.folder / "none.json"), status=2)
        self.assertFalse(self.holds("policy-check", answer)["read"])

    def test_policy_show_and_explain(self) -> None:
        for file in EXAMPLES:
            with self.subTest(file.name):
                self.holds("policy-show", self.curb("policy", "show", "--json", str(file)))
                self.holds("policy-show", self.curb("policy", "show", "--json", str(file), CURB_CAP="1GiB"))
                self.holds("policy-explain", self.curb("policy", "explain", "--json", str(file), "--", "python3", "train_bert.py"))
                self.holds("policy-explain", self.curb("policy", "explain", "--json", str(file), "--", "no-such-program"))
        for file in self.wrong_files():
            self.holds("policy-show", self.curb("policy", "show", "--json", str(file), status=1))
            self.holds("policy-explain", self.curb("policy", "explain", "--json", str(file), "--", "true", status=1))

    def test_release_suspend_and_resume(self) -> None:
        environment = self.environment | {"LD_PRELOAD": str(BUILD / "lib/libcurb.so"), "CURB_CAP": "8GiB"}
        program = subprocess.Popen(
            [str(BUILD / "tests/crowd_program"), "7"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with program:
            self.addCleanup(program.kill)
            assert program.stdin and program.stdout
            self.assertEqual(program.stdout.readline(), "working\n")
            program.stdin.write("quiet\n")
            program.stdin.flush()
            self.assertEqual(program.stdout.readline(), "quiet\n")
            pid = str(program.pid)
            wait_for_socket(self.folder)
            self.assertIn("steps", self.holds("release", self.curb("release", "--json", pid))[0])
            self.assertIn("error", self.holds("release", self.curb("release", "--json", "4194303", status=1))[0])
            everybody = self.holds("release", self.curb("release", "--all", "--json"))
            self.assertIn(program.pid, [one["pid"] for one in everybody])  # root asks others' processes too
            self.assertTrue(self.holds("suspend", self.curb("suspend", "--json", pid))["suspended"])
            self.assertFalse(self.holds("suspend", self.curb("suspend", "--json", pid, status=1))["suspended"])
            self.assertTrue(self.holds("resume", self.curb("resume", "--json", pid))["resumed"])
            self.assertFalse(self.holds("resume", self.curb("resume", "--json", pid, status=1))["resumed"])
            program.stdin.write("end\n")


if __name__ == "__main__":
    unittest.main()
