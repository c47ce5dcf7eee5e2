#!/usr/bin/env python3
"""Holds the answers of `curb ps --json` against cli/schemas/ps.schema.json: ps_schema_test.py BUILD

Those of a real machine of simulated GPUs, and those that BUILD/tests/ps_texts prints of made-up ones.
"""

import copy
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
    print("ps_schema_test: skipped: python3-jsonschema >= 4 is not installed (scripts/setup test)")
    sys.exit(77)

SCHEMA = json.loads((Path(__file__).resolve().parent.parent.parent / "cli/schemas/ps.schema.json").read_text())


def environment(folder, **more):
    return {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "LD_LIBRARY_PATH": str(BUILD / "sim"),
        "CURB_SIM_STATE": str(folder / "state"),
        "CURB_SIM_GPUS": "2",
        "XDG_RUNTIME_DIR": str(folder),
        **more,
    }


def answers(*arguments, **variables):
    run = subprocess.run(
        [BUILD / "bin/curb", "ps", "--json", *arguments], stdout=subprocess.PIPE, text=True, env=variables
    )
    return [json.loads(line) for line in run.stdout.splitlines()]


class Schema(unittest.TestCase):
    validator = Draft202012Validator(SCHEMA)

    def holds(self, document):
        faults = [f"{list(fault.absolute_path)}: {fault.message}" for fault in self.validator.iter_errors(document)]
        self.assertEqual(faults, [])

    def test_the_schema_is_one(self):
        Draft202012Validator.check_schema(SCHEMA)

    def test_everything_has_a_description(self):
        def look(at, path):
            for name, member in at.get("properties", {}).items():
                with self.subTest(path + name):
                    self.assertTrue("description" in member or "$ref" in member)
                look(member, f"{path}{name}/")
            for inner in [*at.get("oneOf", []), *([at["items"]] if "items" in at else [])]:
                look(inner, path)

        look(SCHEMA, "/")
        for name, definition in SCHEMA["$defs"].items():
            look(definition, f"/$defs/{name}/")

    def test_made_up_machines(self):
        lines = subprocess.run([BUILD / "tests/ps_texts"], stdout=subprocess.PIPE, text=True, check=True).stdout
        documents = [json.loads(line) for line in lines.splitlines()]
        self.assertEqual(len(documents), 6)
        for document in documents:
            self.holds(document)
        full = documents[1]
        for path, wrong in [
            (["gpus", 0, "uses", 0, "pid"], 0),
            (["gpus", 0, "uses", 1, "books", "held"], -1),
            (["processes", 0, "status", "refusals", 0, "why"], "hunger"),
            (["processes", 0, "status", "policy", "file"], 1),
            (["processes", 0, "unheard_of"], True),
        ]:
            with self.subTest(path):  # a schema that lets anything pass is none
                spoilt = copy.deepcopy(full)
                at = spoilt
                for key in path[:-1]:
                    at = at[key]
                at[path[-1]] = wrong
                self.assertFalse(self.validator.is_valid(spoilt))

    def test_a_real_machine(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            variables = environment(folder)
            capped = {**variables, "LD_PRELOAD": str(BUILD / "lib/libcurb.so"), "CURB_CAP": "8GiB"}
            command = [BUILD / "tests/scenarios", "does_what_it_is_told"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            with subprocess.Popen(command, env=capped, **pipes) as one, subprocess.Popen(
                command, env=variables, **pipes
            ) as other:
                for process in (one, other):
                    self.assertEqual(process.stdout.readline(), "ready\n")
                wait_for_socket(variables["XDG_RUNTIME_DIR"])
                for arguments in [(), (str(one.pid),), (str(one.pid), str(other.pid), "2147483647")]:
                    (document,) = answers(*arguments, **variables)
                    self.holds(document)
                self.assertEqual([error["pid"] for error in document["errors"]], [other.pid, 2147483647])
                for process in (one, other):
                    process.stdin.close()


if __name__ == "__main__":
    BUILD = Path(sys.argv[1])
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
