#!/usr/bin/env python3
"""Compares what commands print with --json with tests/command/answers/: answers_test.py BUILD [--write]

Each file has one answer of each form (a result, an error, a command that found nothing). --write writes them; ps.json is
the answer about the machine in tests/unit/cli/ps_detail_test.cpp.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / folder) for folder in ("common", "trace")]
from answers import FOLDER, faults, shortened, text_of  # noqa: E402
from recorded import generated  # noqa: E402
from simulated import OfMachine  # noqa: E402
from skipping import run_cases  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = sorted((ROOT / "config/examples").glob("*.json"))
NO_PROCESS = 2147483647
"""A pid that no process has."""
WRITTEN: dict[str, list[Any]] = {}
"""With --write: the examples of each command so far."""


class Answers(OfMachine):
    def answer(self, command: str, *words: object, status: int = 0, **more: str) -> Any:
        """Runs a command and returns its answer. Fails if the answer has not the form of the examples."""
        done = self.machine.curb(*words, **more)
        self.assertEqual(done.returncode, status, f"{words}: {done.stdout}{done.stderr}")
        return self.like_an_example(command, json.loads(done.stdout))

    def like_an_example(self, command: str, answer: Any) -> Any:
        if not WRITE:
            self.assertEqual(faults(command, answer), [], answer)
        else:
            WRITTEN[command] = shortened([*WRITTEN.get(command, []), answer])
        return answer


class Policy(Answers):
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
        script = self.machine.folder / "train.sh"
        script.write_text("#!/bin/sh\n")
        script.chmod(0o755)
        for file in EXAMPLES:
            with self.subTest(file.name):
                self.answer("policy-show", "policy", "show", "--json", file)
                self.answer("policy-show", "policy", "show", "--json", file, CURB_CAP="1GiB")
                for command in ([str(script), "--batch-size 256"], ["no-such-program"]):
                    self.answer("policy-explain", "policy", "explain", "--json", file, "--", *command)
        for file in self.wrong_files():
            self.answer("policy-show", "policy", "show", "--json", file, status=1)
            self.answer("policy-explain", "policy", "explain", "--json", file, "--", "true", status=1)


class ReleaseAndMoves(Answers):
    def test_release_suspend_and_resume(self) -> None:
        pid = self.machine.run_program().pid
        self.assertIn("steps", self.answer("release", "release", "--json", pid)[0])
        self.assertIn("error", self.answer("release", "release", "--json", NO_PROCESS, status=1)[0])
        ours = self.answer("release", "release", "--tree", os.getpid(), "--json")  # root's --all asks other tests' too
        self.assertEqual([one["pid"] for one in ours], [pid])
        self.assertTrue(self.answer("suspend", "suspend", "--json", pid)[0]["suspended"])
        self.assertFalse(self.answer("suspend", "suspend", "--json", pid, status=1)[0]["suspended"])
        self.assertTrue(self.answer("resume", "resume", "--json", pid)[0]["resumed"])
        self.assertFalse(self.answer("resume", "resume", "--json", pid, status=1)[0]["resumed"])

    def test_several_processes_are_one_answer_in_the_order_of_the_pids(self) -> None:
        pids = [self.machine.run_program().pid, NO_PROCESS, self.machine.run_program().pid]
        for command, words, done in (
            ("release", [], "freed"), ("cap", ["6GiB"], "gpus"), ("suspend", [], "seconds"), ("resume", [], "seconds"),
        ):  # fmt: skip
            answers = self.answer(command, command, "--json", *pids, *words, status=1)
            self.assertEqual([one["pid"] for one in answers], pids, command)
            self.assertEqual([done in one for one in answers], [True, False, True], command)

    def test_a_description_of_processes_none_of_which_is_moved_is_an_empty_list(self) -> None:
        self.machine.run_program()
        self.assertEqual(json.loads(self.machine.curb("resume", "--json", "--tree", os.getpid()).stdout), [])


class Times(Answers):
    def test_every_time_is_in_seconds_too(self) -> None:
        instants = {"time", "since", "at", "until", "step", "no_room_since"}
        seen = set()

        def check(value: Any) -> None:
            for one in value.values() if isinstance(value, dict) else value:
                if isinstance(one, (dict, list)):
                    check(one)
            for name, one in value.items() if isinstance(value, dict) else ():
                for ending, divisor in (("milliseconds", 1e3), ("_ms", 1e3), ("_ns", 1e9), ("", 1e3)):
                    if name.endswith(ending) and (ending or (name in instants and not isinstance(one, str))):
                        break
                else:
                    continue
                seconds = name.removesuffix(ending) + ("seconds" if ending != "" else "_unix_seconds")
                seconds = seconds if ending in ("milliseconds", "") else name.removesuffix(ending) + "_seconds"
                seen.add(seconds)
                self.assertIn(seconds, value)
                if one is None:
                    self.assertIsNone(value[seconds])
                else:
                    self.assertAlmostEqual(value[seconds], one / divisor, places=6)

        for file in FOLDER.glob("*.json"):
            with self.subTest(file.name):
                check(json.loads(file.read_text()))
        self.assertTrue({"seconds", "time_unix_seconds", "step_unix_seconds", "at_seconds", "began_unix_seconds"} <= seen, seen)


class Steering(Answers):
    gpus = 2

    def setUp(self) -> None:
        super().setUp()
        self.pid = self.machine.run_program(self.machine.under_curb({"gpu": {"*": {"cap": "8GiB"}}})).pid

    def cap(self, pid: int, *words: str, status: int = 0) -> Any:
        return self.answer("cap", "cap", pid, *words, "--json", status=status)[0]

    def test_cap(self) -> None:
        first, second = self.cap(self.pid, "6GiB")["gpus"]
        self.assertEqual((first["before"], first["now"], first["live_cap"]), (8 << 30, 6 << 30, "6GiB"))
        self.assertEqual(second["ordinal"], 1)
        (one,) = self.cap(self.pid, "50%", "--gpu", "cuda:1")["gpus"]
        self.assertEqual((one["now"], one["live_cap"]), (40 << 30, "50%"))
        for gpu in self.cap(self.pid, "--reset")["gpus"]:
            self.assertEqual((gpu["now"], gpu["live_cap"], gpu["ceiling"]), (8 << 30, None, False))
        self.assertIn("cuda:7", self.cap(self.pid, "1GiB", "--gpu", "cuda:7", status=1)["error"])
        self.assertIn("no process", self.cap(NO_PROCESS, "1GiB", status=1)["error"])


class Doctor(Answers):
    def doctor(self, *words: object, **more: str) -> Any:
        done = self.machine.curb("doctor", "--json", *words, **more)
        answer = json.loads(done.stdout)
        self.like_an_example("doctor", answer)
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
        process = self.machine.run_program()
        answer = self.doctor(process.pid)
        self.assertEqual(answer["pid"], process.pid)
        self.assertTrue(answer["healthy"], answer)
        self.doctor()

    def test_a_process_without_curb(self) -> None:
        self.assertEqual([one["check"] for one in self.doctor(os.getpid())["findings"]], ["preload"])


class Ps(Answers):
    gpus = 2

    def test_a_machine_with_processes(self) -> None:
        one, other = self.machine.run_program(), self.machine.run_program(self.machine.bare)
        self.answer("ps", "ps", "--json")
        self.answer("ps", "ps", "--json", one.pid)
        answer = self.answer("ps", "ps", "--json", one.pid, other.pid, NO_PROCESS, status=1)
        self.assertEqual([error["pid"] for error in answer["errors"]], [other.pid, NO_PROCESS])


class Traces(Answers):
    def test_report_and_replay(self) -> None:
        trace, _ = generated(self.machine.folder, gpus=2)
        other, _ = generated(self.machine.folder, "other.trace.json", seed=2, gpus=2)
        self.answer("report", "report", trace, "--json")
        rules = [{"match": {"user": "alice"}, "gpu": {"*": {"cap": "3GiB"}}}]
        growth = {"start": "2GiB", "step": "1GiB", "every": "10s", "keep_free": "4GiB"}
        policy = self.machine.policy({"gpu": {"*": {"cap": "6GiB", "growth": growth}}, "rules": rules})
        self.answer("replay", "replay", trace, "--policy", policy, "--json")
        self.answer("replay", "replay", trace, "--cap", "4GiB", "--json")
        self.answer("report", "report", trace, other, "--json")
        self.answer("replay", "replay", trace, other, "--job-cap", "4GiB", "--json")


if __name__ == "__main__":
    BUILD = Path(sys.argv[1]).resolve()
    WRITE = "--write" in sys.argv
    if WRITE:
        unittest.main(argv=sys.argv[:1], exit=False)
        with tempfile.NamedTemporaryFile() as answer:
            subprocess.run([BUILD / "tests/ps_detail_test", "the JSON answer of a machine with everything in it*"],
                           env=os.environ | {"CURB_PS_ANSWER_TO": answer.name}, stdout=subprocess.DEVNULL)
            WRITTEN["ps"] = [json.load(answer)]
        for name, examples in WRITTEN.items():
            text = re.sub(rf"{ROOT}/|/tmp/curb-test-[^/]*/", "", text_of(examples))
            (FOLDER / f"{name}.json").write_text(text + "\n")
    else:
        run_cases()
