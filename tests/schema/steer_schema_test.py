#!/usr/bin/env python3
"""What curb cap and curb policy reload answer, against their schemas: steer_schema_test.py CURB SCENARIOS LIBRARY SIM"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from sockets import wait_for_socket

try:
    from jsonschema import Draft202012Validator
except ImportError:
    print("steer_schema_test: skipped: python3-jsonschema >= 4 is not installed (scripts/setup test)")
    sys.exit(77)

SCHEMAS = Path(__file__).resolve().parent.parent.parent / "cli" / "schemas"


def policy(cap):
    return json.dumps({"version": 1, "gpu": {"*": {"cap": cap}}})


class Answers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.file = Path(self.folder.name) / "job.json"
        self.file.write_text(policy("8GiB"))
        self.environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "XDG_RUNTIME_DIR": self.folder.name}
        under = {"LD_PRELOAD": LIBRARY, "LD_LIBRARY_PATH": SIM, "CURB_SIM_GPUS": "2", "CURB_POLICY": str(self.file)}
        self.process = subprocess.Popen(
            [SCENARIOS, "is_steered"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**self.environment, **under},
        )
        self.addCleanup(self.end)
        self.assertEqual(self.process.stdout.readline(), b"ready\n")
        wait_for_socket(self.folder.name)

    def end(self):
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()

    def answer(self, schema, *words, status=0):
        """The command's answer, which fits its schema. "PID" stands for the process."""
        words = [str(self.process.pid) if word == "PID" else word for word in words]
        run = subprocess.run([CURB, *words, "--json"], stdout=subprocess.PIPE, text=True, env=self.environment)
        self.assertEqual(run.returncode, status)
        answer = json.loads(run.stdout)
        validator = Draft202012Validator(json.loads((SCHEMAS / schema).read_text()))
        self.assertEqual([error.message for error in validator.iter_errors(answer)], [])
        return answer

    def cap(self, *words, status=0):
        return self.answer("cap.schema.json", "cap", *words, status=status)

    def reload(self, *words, status=0):
        return self.answer("policy-reload.schema.json", "policy", "reload", *words, status=status)

    def test_the_schemas_are_schemas(self):
        for name in "cap.schema.json", "policy-reload.schema.json":
            Draft202012Validator.check_schema(json.loads((SCHEMAS / name).read_text()))

    def test_cap(self):
        first, second = self.cap("PID", "6GiB")["gpus"]
        self.assertEqual((first["before"], first["now"], first["live_cap"]), (8 << 30, 6 << 30, "6GiB"))
        self.assertEqual(second["ordinal"], 1)
        (one,) = self.cap("PID", "50%", "--gpu", "cuda:1")["gpus"]
        self.assertEqual((one["now"], one["live_cap"]), (40 << 30, "50%"))
        for gpu in self.cap("PID", "--reset")["gpus"]:
            self.assertEqual((gpu["now"], gpu["live_cap"], gpu["ceiling"]), (8 << 30, None, False))
        self.file.write_text('{"version": 1}')
        self.reload("PID")
        self.assertIsNone(self.cap("PID", "--reset")["gpus"][0]["now"])
        self.assertIn("cuda:7", self.cap("PID", "1GiB", "--gpu", "cuda:7", status=1)["error"])
        self.assertIn("no process", self.cap("2147483647", "1GiB", status=1)["error"])

    def test_reload(self):
        self.assertEqual(self.reload("PID")["changes"], [])
        self.file.write_text(policy("6GiB"))
        self.assertEqual(self.reload("PID")["changes"], ['/gpu/*/cap: "8GiB" -> "6GiB"'])
        self.file.write_text('{"version": 1, "gpu": {"cuda:9": {"cap": "1GiB"}}}')
        self.assertEqual(len(self.reload("PID")["notes"]), 1)
        self.file.write_text("{")
        self.assertEqual(len(self.reload("PID", status=1)["errors"]), 1)
        self.assertIn("no process", self.reload("2147483647", status=1)["error"])


if __name__ == "__main__":
    CURB, SCENARIOS, LIBRARY, SIM = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
