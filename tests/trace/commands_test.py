#!/usr/bin/env python3
"""curb report and curb replay as commands: commands_test.py BUILD

What they print, write and refuse.
"""

import json
import re
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from recorded import curb, generated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from answers import faults  # noqa: E402

GiB = 1 << 30
POLICY = {
    "version": 1,
    "gpu": {"*": {"cap": "20GiB", "growth": {"start": "2GiB", "step": "1GiB", "every": "10s", "keep_free": "4GiB"}}},
    "rules": [
        {"match": {"user": "alice"}, "gpu": {"*": {"cap": "3GiB"}}},
        {"name": "bert", "match": {"exe": "python3*", "args": "*train_bert*"}, "gpu": {"*": {"cap": "6GiB"}}},
    ],
}


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.trace, cls.counts = generated(cls.folder.name, gpus=2)
        cls.policy = cls.file("job.json", json.dumps(POLICY))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def file(cls, name, text=None):
        path = Path(cls.folder.name) / name
        if text is not None:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def answer(self, command, *words):
        answer = json.loads(curb(CURB, command, "--json", *words).stdout)
        self.assertEqual(faults(command, answer), [])
        return answer

    # ---- report ----

    def test_the_figures_are_those_of_the_trace(self):
        answer = self.answer("report", self.trace)
        self.assertEqual(answer["events"], sum(self.counts.values()))
        contexts = len(answer["gpus"])  # one on each GPU, which the report does not count
        self.assertEqual(sum(gpu["allocations"] for gpu in answer["gpus"]), self.counts["alloc"] - contexts)
        self.assertEqual(sum(gpu["refused"]["count"] for gpu in answer["gpus"]), self.counts["refuse"])
        self.assertEqual(sum(gpu["waited"]["count"] for gpu in answer["gpus"]), self.counts["wait"])
        self.assertEqual(sum(len(release["steps"]) for release in answer["releases"]), self.counts["step"])
        self.assertEqual([release["trigger"] for release in answer["releases"]], ["SIGUSR1", "idle"])
        self.assertEqual([(nap["how"], nap["wake_ns"]) for nap in answer["absences"]], [("nap", 731_000_000)])
        for gpu in answer["gpus"]:
            self.assertEqual(sum(gpu["peak"]["by_kind"].values()), gpu["peak"]["bytes"])
            self.assertEqual(sum(gpu["refused"]["by"].values()), gpu["refused"]["count"])

    def test_every_kind_of_trace_has_an_answer_like_the_example(self):
        cut = self.file("cut.json", self.trace.read_bytes()[:50_000])
        self.assertEqual(len(self.answer("report", cut)["missing"]), 1)
        self.assertIn("It ends in the middle of line", curb(CURB, "report", cut, "-o", self.file("cut.html")).stderr)
        header = self.file("header.json", b"\n".join(self.trace.read_bytes().split(b"\n")[:2]))
        self.assertEqual(self.answer("report", header)["events"], 0)

    def test_standard_input_is_read(self):
        with open(self.trace) as trace:
            said = curb(CURB, "report", "-", stdin=trace).stdout
        self.assertEqual(said.splitlines()[2:], curb(CURB, "report", self.trace).stdout.splitlines()[2:])

    def test_a_picture_is_well_formed(self):
        out = self.file("run.svg")
        self.assertEqual(curb(CURB, "report", self.trace, "-o", out).stdout, "")
        titles = [element.text for element in ElementTree.parse(out).iter("{http://www.w3.org/2000/svg}title")]
        refused = [title for title in titles if re.match(r"[0-9:]{8} refused [23] GiB", title)]
        self.assertEqual(len(refused), self.counts["refuse"])

    def test_pages_are_written_whole_or_not_at_all(self):
        out = self.file("kept.html", "kept")
        refused = curb(CURB, "report", self.file("no.json", "nonsense"), "-o", out, status=1)
        self.assertRegex(refused.stderr, r"\Acurb: '.*no\.json' is .*\n\Z")
        self.assertEqual(out.read_text(), "kept")
        curb(CURB, "report", self.trace, "-o", out)
        self.assertTrue(out.read_text().startswith("<!DOCTYPE html>"))
        self.assertEqual([path.name for path in out.parent.glob("*.part")], [])
        failed = curb(CURB, "report", self.trace, "-o", "/nonexistent/run.html", status=125)
        self.assertIn("cannot make a file beside /nonexistent/run.html: No such file or directory", failed.stderr)

    def test_a_file_that_says_not_what_to_write_is_refused(self):
        said = curb(CURB, "report", self.trace, "-o", "run.pdf", status=125).stderr
        self.assertRegex(said, r"'run.pdf' .* \.html .* \.svg")

    def test_the_trace_itself_is_not_written_over(self):
        same = self.file("same.html", self.trace.read_bytes())
        self.assertIn("is the trace itself", curb(CURB, "report", same, "-o", same, status=125).stderr)
        self.assertEqual(same.read_bytes(), self.trace.read_bytes())

    # ---- replay ----

    def test_the_rule_for_the_recorded_command_is_laid_over(self):
        answer = self.answer("replay", self.trace, "--policy", self.policy)
        self.assertEqual(answer["rule"], 'rule 2 "bert"')
        self.assertEqual({gpu["cap"] for gpu in answer["gpus"]}, {6 * GiB})
        self.assertTrue(any("user" in note for note in answer["notes"]))
        self.assertTrue(any("keep_free" in note for note in answer["notes"]))
        for gpu in answer["gpus"]:
            self.assertGreater(gpu["growth"]["steps"], 0)
            self.assertGreater(gpu["refused"]["count"], 0)
            self.assertLessEqual(gpu["peak"]["bytes"], 6 * GiB)
        lower = self.answer("replay", self.trace, "--policy", self.policy, "--cap", "3GiB")
        self.assertEqual({gpu["cap"] for gpu in lower["gpus"]}, {3 * GiB})
        said = curb(CURB, "replay", self.trace, "--policy", "-", input=json.dumps(POLICY)).stdout
        self.assertIn('under -, rule 2 "bert"', said)

    def test_the_smallest_cap_serves_the_run_and_a_mebibyte_less_does_not(self):
        answer = self.answer("replay", self.trace, "--cap", "1GiB")
        for gpu in answer["gpus"]:
            for less, refuses in ((0, False), (1 << 20, True)):
                again = self.answer("replay", self.trace, "--cap", f"{gpu['smallest_cap'] - less}B")
                self.assertEqual(again["gpus"][gpu["gpu"]]["refused"]["count"] > 0, refuses)
        options = [word for gpu in answer["gpus"] for word in gpu["paste"].split()]
        self.assertRegex(" ".join(options), r"\A--cap cuda:0=[0-9.]+GiB --cap cuda:1=[0-9.]+GiB\Z")
        again = self.answer("replay", self.trace, *options)
        self.assertEqual([gpu["refused"]["count"] for gpu in again["gpus"]], [0, 0])

    # ---- the traces of a job ----

    def ranks(self):
        """Returns the traces of two processes on the same two GPUs, with the peak of each on each."""
        other, _ = generated(self.folder.name, "other.trace.json", seed=2, gpus=2)
        each = [self.answer("report", trace)["gpus"] for trace in (self.trace, other)]
        return (self.trace, other), [[gpu["peak"]["bytes"] for gpu in gpus] for gpus in each]

    def test_the_traces_of_a_job_are_reported_each_and_together(self):
        traces, peaks = self.ranks()
        answer = self.answer("report", *traces)
        self.assertEqual([[gpu["peak"]["bytes"] for gpu in one["gpus"]] for one in answer["traces"]], peaks)
        self.assertEqual([gpu["uuid"] for gpu in answer["job"]["gpus"]], ["GPU-00000000-0000", "GPU-00000001-0000"])
        for gpu, (one, other) in zip(answer["job"]["gpus"], zip(*peaks)):
            self.assertGreater(gpu["peak"]["bytes"], max(one, other))
            self.assertLessEqual(gpu["peak"]["bytes"], one + other)
            self.assertEqual(sum(gpu["peak"]["by_kind"].values()), gpu["peak"]["bytes"])
            self.assertRegex(gpu["paste"], r"\A--job-cap GPU-0000000\d-0000=[0-9.]+GiB\Z")
        said = curb(CURB, "report", *traces).stdout
        self.assertEqual(said.count("train_bert.py"), 2)
        self.assertIn("2 processes together", said)
        for name in ("job.html", "job.svg"):
            curb(CURB, "report", *traces, "-o", self.file(name))
            self.assertIn("2 processes together", self.file(name).read_text())

    def test_a_job_may_have_more_gpus_than_a_process(self):
        traces = []
        for rank in range(300):
            gpu = {"gpu": 0, "uuid": f"GPU-{rank:08}", "total": 80 * GiB}
            header = {"trace": 1, "version": "", "unix_ns": 0, "command": "", "gpus": [gpu]}
            size = (rank + 1) << 21
            traces.append(self.file(f"rank-{rank}.json", f'''[
{json.dumps({"ph": "M", "name": "curb", "ts": 0, "pid": 1, "tid": 1, "args": header})},
{{"ph":"i","s":"t","name":"alloc","ts":1.000,"pid":1,"tid":1,"args":{{"gpu":0,"kind":"plain","pointer":"0x1","bytes":{size},"charge":{size},"of_kind":{size},"held":{size}}}}},
'''))
        job = self.answer("report", *traces)["job"]
        self.assertEqual([gpu["peak"]["bytes"] for gpu in job["gpus"]], [(rank + 1) << 21 for rank in range(300)])

    def test_the_traces_of_a_job_are_replayed_together(self):
        traces, peaks = self.ranks()
        most = max(one + other for one, other in zip(*peaks))
        wide = self.answer("replay", *traces, "--job-cap", f"{2 * most}B")
        self.assertEqual({gpu["job_cap"] for one in wide["traces"] for gpu in one["gpus"]}, {2 * most})
        self.assertEqual({refusal["why"] for one in wide["traces"] for gpu in one["gpus"] for refusal in gpu["refused"]["first"]}, set())
        narrow = self.answer("replay", *traces, "--job-cap", f"{most // 2}B")
        self.assertEqual({refusal["why"] for one in narrow["traces"] for gpu in one["gpus"] for refusal in gpu["refused"]["first"]}, {"job"})
        for gpu in narrow["job"]:
            self.assertLessEqual(gpu["peak"]["bytes"], most // 2)
        # Rounded up, the cap to paste serves the job too.
        served = self.answer("replay", *traces, *[word for gpu in wide["job"] for word in gpu["paste"].split()])
        self.assertEqual([gpu["refused"]["count"] for one in served["traces"] for gpu in one["gpus"]], [0] * 4)
        self.assertTrue(any("does not show the end" in note for note in served["notes"]))
        alone = self.answer("replay", traces[0], "--job-cap", "1GiB")
        self.assertTrue(any("as if this process were alone" in note for note in alone["notes"]))

    def test_a_replay_takes_the_options_of_curb_run(self):
        answer = self.answer("replay", self.trace, "--growth", "1GiB:1GiB:10s", "--keep-free", "78GiB", "--wait", "2s")
        self.assertEqual(answer["options"], ["--growth", "1GiB:1GiB:10s", "--wait", "2s", "--keep-free", "78GiB"])
        for gpu in answer["gpus"]:
            self.assertGreater(gpu["growth"]["steps"], 0)
            self.assertGreater(gpu["waited"]["count"], 0)
            self.assertIn("keep_free", {refusal["why"] for refusal in gpu["refused"]["first"]})
        self.assertIn("--growth: ", curb(CURB, "replay", self.trace, "--growth", "1GiB", status=125).stderr)
        self.assertIn("--job-cap: ", curb(CURB, "replay", self.trace, "--job-cap", "8Gib8", status=125).stderr)
        self.assertIn("--nap", curb(CURB, "replay", self.trace, "--nap", "1s", status=125).stderr)
        self.assertIn("only one of the files", curb(CURB, "replay", "-", "-", "--cap", "1GiB", status=125, input="").stderr)

    def test_a_key_that_is_the_beginning_of_several_uuids_is_not_applied(self):
        rules = {"*": {"cap": "20GiB"}, "GPU-0000000": {"cap": "1GiB"}, "GPU-00000001": {"cap": "2GiB"}}
        policy = self.file("several.json", json.dumps({"version": 1, "gpu": rules}))
        answer = self.answer("replay", self.trace, "--policy", policy)
        self.assertEqual([gpu["cap"] for gpu in answer["gpus"]], [20 * GiB, 2 * GiB])
        self.assertTrue(any("beginning of several UUIDs" in note for note in answer["notes"]))

    def test_what_cannot_be_replayed_is_refused_with_a_remedy(self):
        self.assertIn("add --policy FILE or --cap SIZE", curb(CURB, "replay", self.trace, status=125).stderr)
        bad = self.file("bad.json", '{"version": 1, "gpu": {"*": {"cap": "8Gib8"}}}')
        self.assertIn("bad.json:1:", curb(CURB, "replay", self.trace, "--policy", bad, status=1).stderr)
        curb(CURB, "replay", self.trace, "--policy", "/nonexistent", status=2)
        curb(CURB, "replay", "-", "--policy", "-", status=125, input="")
        curb(CURB, "replay", "/nonexistent", "--cap", "1GiB", status=1)

    def test_the_words_have_the_figures(self):
        said = curb(CURB, "replay", self.trace, "--policy", self.policy).stdout
        answer = self.answer("replay", self.trace, "--policy", self.policy)
        for gpu in answer["gpus"]:
            self.assertRegex(said, rf"refused +{gpu['refused']['count']},")
        self.assertIn("would have served it", said)


if __name__ == "__main__":
    CURB = sys.argv.pop(1) + "/bin/curb"
    unittest.main()
