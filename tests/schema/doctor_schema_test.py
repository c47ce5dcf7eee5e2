#!/usr/bin/env python3
"""Holds cli/schemas/doctor.schema.json against what curb says: doctor_schema_test.py CURB LIBRARY SIM SCENARIOS"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from sockets import wait_for_socket

try:
    from jsonschema import Draft202012Validator
except ImportError:
    print("doctor_schema_test: skipped: python3-jsonschema >= 4 is not installed (scripts/setup test)")
    sys.exit(77)

ROOT = Path(__file__).resolve().parent.parent.parent
FILE = ROOT / "cli" / "schemas" / "doctor.schema.json"


class Doctor(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.schema = json.loads(FILE.read_text())
        Draft202012Validator.check_schema(cls.schema)
        cls.validator = Draft202012Validator(cls.schema)

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def environment(self, **more):
        return {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "XDG_RUNTIME_DIR": self.folder.name,
            "LD_LIBRARY_PATH": SIM,
            "CURB_LIBRARY": LIBRARY,
            "CURB_SIM_STATE": self.folder.name + "/machine",
            **more,
        }

    def answer(self, *words, **more):
        run = subprocess.run(
            [CURB, "doctor", "--json", *words], stdout=subprocess.PIPE, env=self.environment(**more), check=False
        )
        answer = json.loads(run.stdout)
        errors = [error.message for error in self.validator.iter_errors(answer)]
        self.assertEqual(errors, [])
        problems = [one for one in answer["findings"] if one["result"] == "problem"]
        self.assertEqual((run.returncode, answer["healthy"]), (1, False) if problems else (0, True))
        return answer

    def test_a_machine(self):
        self.assertTrue(self.answer()["healthy"])

    def test_a_machine_with_troubles(self):
        self.answer(CURB_SIM_NVML="broken", CURB_CAP="8Gib", XDG_RUNTIME_DIR="/nonexistent", CUDA_VISIBLE_DEVICES="")
        self.answer(CURB_SIM_MIG="1", CURB_SIM_PERSISTENCE="off", CURB_LIBRARY="/nonexistent")
        self.answer(LD_LIBRARY_PATH="/nonexistent")

    def test_a_capped_process(self):
        preload = {"LD_PRELOAD": LIBRARY, "CURB_CAP": "8GiB"}
        program = subprocess.Popen(
            [SCENARIOS, "does_what_it_is_told"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environment(**preload),
        )
        with program:
            self.assertEqual(program.stdout.readline(), b"ready\n")
            wait_for_socket(self.folder.name)
            answer = self.answer(str(program.pid))
            self.assertEqual(answer["pid"], program.pid)
            self.assertTrue(answer["healthy"], answer)
            self.answer()
            program.stdin.close()

    def test_a_process_without_curb(self):
        self.assertEqual([one["check"] for one in self.answer(str(os.getpid()))["findings"]], ["preload"])

    def test_every_check_is_in_the_schema(self):
        sources = "".join(path.read_text() for path in (ROOT / "cli").glob("doctor_*.cpp"))
        written = set(re.findall(r'kCheck = "([^"]+)"', sources))
        written |= set(re.findall(r'\b(?:ok|note|problem)\(\s*"([a-z.-]+)",', sources))
        written |= set(*re.findall(r'of_ceiling \? "(\w+)" : "(\w+)"', sources))
        listed = set(self.schema["properties"]["findings"]["items"]["properties"]["check"]["enum"])
        self.assertEqual(written, listed)


if __name__ == "__main__":
    CURB, LIBRARY, SIM, SCENARIOS = sys.argv[1:5]
    unittest.main(argv=sys.argv[:1])
