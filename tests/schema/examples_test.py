#!/usr/bin/env python3
"""Tests of config/examples: examples_test.py BUILD

Each example is valid and says how it is used; those with rules, steering or a ceiling do what their comments say. The
parser's tests cover other fields.
"""

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "config" / "examples"

STEERED = {  # under a cap
    "TF_DEVICE_MIN_SYS_MEMORY_IN_MB": "225",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "TF_GPU_ALLOCATOR": "cuda_malloc_async",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}


def curb(*arguments, **environment):
    plain = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    return subprocess.run(
        [CURB, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**plain, **environment}
    )


class Explained:
    """The answer of `curb policy explain` for a command under an example."""

    def __init__(self, example, *command, **environment):
        run = curb("policy", "explain", "--json", str(EXAMPLES / example), "--", *command, **environment)
        assert run.returncode == 0, run.stderr
        self.answer = json.loads(run.stdout)
        self.rule = next((rule["rule"] for rule in self.answer["rules"] if rule["laid_over"]), None)
        self.variables = {one["name"]: one["value"] for one in self.answer["variables"]}

    def __getitem__(self, pointer):
        return next(row["value"] for row in self.answer["settings"] if row["pointer"] == pointer)


class Examples(unittest.TestCase):
    def test_each_is_valid(self):
        files = sorted(EXAMPLES.glob("*.json"))
        self.assertGreaterEqual(len(files), 6)
        run = curb("policy", "check", *map(str, files))
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_each_says_how_it_is_used(self):
        for file in EXAMPLES.glob("*.json"):
            with self.subTest(file.name):
                head = file.read_text().split("\n{", 1)[0]
                self.assertRegex(head, rf"//   (curb run .*--policy {file.name}|install .*{file.name}) ")

    def test_a_sweep(self):
        def run(*arguments, **environment):
            policy = Explained("sweep.json", "true", "train.py", *arguments, **environment)
            return policy.rule, policy["/gpu/*/cap"], policy["/log/file"]

        self.assertEqual(run(), (None, "8GiB", "curb-%p.log"))
        self.assertEqual(run("--batch-size", "64"), (None, "8GiB", "curb-%p.log"))
        self.assertEqual(run("--batch-size", "256"), ('rule 1 "large batches"', "24GiB", "curb-%p.log"))
        self.assertEqual(run("--eval"), ('rule 2 "evaluation"', "4GiB", "curb-%p.log"))
        self.assertEqual(run(WANDB_SWEEP_ID="abc123"), ('rule 3 "of a sweep"', "12GiB", "curb-%p.log"))
        self.assertEqual(run("--batch-size", "256", WANDB_SWEEP_ID="abc123")[0], 'rule 1 "large batches"')

    def test_no_preallocation(self):
        policy = Explained("no-preallocation.json", "true")
        self.assertEqual(policy.variables, {"TF_CPP_MIN_LOG_LEVEL": "1", **STEERED})
        own = Explained("no-preallocation.json", "true", XLA_PYTHON_CLIENT_PREALLOCATE="true", PYTORCH_ALLOC_CONF="")
        self.assertNotIn("XLA_PYTHON_CLIENT_PREALLOCATE", own.variables)
        self.assertNotIn("PYTORCH_CUDA_ALLOC_CONF", own.variables)
        self.assertEqual(policy["/gpu/*/growth/start"], "1GiB")

    def test_a_ceiling(self):
        run = curb("policy", "show", "--json", str(EXAMPLES / "ceiling.json"))
        answer = json.loads(run.stdout)
        values = {row["pointer"]: row["value"] for row in answer["settings"]}
        self.assertEqual((values["/gpu/*/cap"], values["/gpu/*/growth/keep_free"]), ("75%", "2GiB"))
        rules = {
            rule["match"]["user"]: {one["pointer"]: one["value"] for one in rule["settings"]}
            for rule in answer["rules"]
        }
        self.assertEqual(rules["stud*"], {"/gpu/*/cap": "10GiB"})
        self.assertEqual(rules["root"], {"/gpu/*/cap": "100%", "/gpu/*/growth/keep_free": "0B"})


if __name__ == "__main__":
    CURB = sys.argv[1] + "/bin/curb"
    unittest.main(argv=sys.argv[:1])
