"""Tests the bench: its statistics, targets, options and lanes. bench_test.py BUILD, a build with the probe and the drivers."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import bench
import measures
import report
import results as written
from gpu_tests import ProgramFailed, shell_environment
from lane import Lane
from measures import Group, LaneSpec, Row
from pairs import Figure
from running import NO_TIME, Result, Run, Setting, measured
from subjects import BARE, CURB, DIRECT, TRACE, Subject, own_subjects, peer


class Pairs(unittest.TestCase):
    def test_a_ratio_is_the_median_of_pairs_and_not_the_ratio_of_medians(self) -> None:
        figure = Figure.of([2.0, 40.0, 600.0], [1.0, 10.0, 100.0], rates=False)
        assert figure.ratio and figure.base_ns
        self.assertEqual((figure.ratio.median, figure.ratio.low, figure.ratio.high), (4.0, 3.0, 5.0))
        self.assertEqual(figure.base_ns.median, 10.0)
        rates = Figure.of([2.0, 2.0], [1.0, 1.0], rates=True)  # more is better
        self.assertEqual(rates.ratio and rates.ratio.median, 0.5)
        self.assertIsNone(Figure.of([2.0], None, rates=False).ratio)


class Targets(unittest.TestCase):
    def test_a_ratio_meets_its_target_or_not(self) -> None:
        figure = Figure.of([102.0], [100.0], rates=False)
        self.assertTrue(measures.at_most(1.02).met(figure))
        self.assertFalse(measures.at_most(1.01).met(figure))

    def test_rows_name_lanes_of_their_group_and_groups_have_names_of_their_own(self) -> None:
        for group in measures.groups(["peer", "mps"]):
            for row in group.rows:
                self.assertIn(row.lane, group.lanes)
                self.assertTrue(row.against is None or row.against in group.lanes, row.name)
            self.assertEqual(len({(row.name, row.lane) for row in group.rows}), len(group.rows))
        for driver in measures.ALL:
            names = [group.name for group in measures.groups([]) if driver in group.drivers]
            self.assertEqual(len(set(names)), len(names))

    def test_a_bare_process_is_a_control_and_the_base_of_mps(self) -> None:
        rows = [row for group in measures.groups(["peer", "mps"]) for row in group.rows]
        controls = [row for row in rows if row.within and row.lane.startswith(BARE)]
        self.assertTrue(controls)
        self.assertEqual([row for row in controls if row.target or row.against], [])
        of_mps = [row for row in rows if row.lane.startswith("mps")]
        self.assertTrue(of_mps)
        self.assertEqual([row.name for row in of_mps if row.within or not (row.against or "").startswith(BARE)], [])


class Peers(unittest.TestCase):
    def test_a_peer_is_a_name_a_library_and_variables(self) -> None:
        with tempfile.NamedTemporaryFile(suffix=".so") as library:
            subject = peer(f"other={library.name},LIMIT=8g,PLACE=/a=b")
        self.assertEqual((subject.name, dict(subject.env)), ("other", {"LIMIT": "8g", "PLACE": "/a=b"}))

    def test_a_wrong_peer_is_refused(self) -> None:
        own = [f"{subject.name}=/bin/true" for subject in own_subjects(Path())]
        for text in (*own, "direct=/bin/true", "mps=/bin/true", "other", "=x", "other=/nowhere.so", "other=/bin/true,LIMIT"):
            with self.subTest(text), self.assertRaises(argparse.ArgumentTypeError):
                peer(text)


class Work(unittest.TestCase):
    def test_every_group_is_run_once_on_each_of_its_drivers(self) -> None:
        groups = measures.groups([])
        done = self.done(groups, 0)
        self.assertEqual(len(set(done)), len(done))
        wanted = {(group.name, driver) for group in groups for driver in group.drivers if driver in ("gpu", "noop")}
        self.assertEqual(set(done), wanted - {(group.name, "noop") for group in groups if group.once})

    def test_later_casts_run_only_groups_that_are_recast(self) -> None:
        groups = measures.groups([])
        single = {group.name for group in groups if not group.recast}
        first, second = self.done(groups, 0), self.done(groups, 1)
        self.assertEqual(second, [(name, driver) for name, driver in first if name not in single])

    def test_a_resumed_run_takes_all_casts_of_a_batch_before_the_next(self) -> None:
        groups = [group for group in measures.groups([]) if group.name in ("edit", "start of /bin/true")]
        for one_by_one, casts in ((False, [0, 0, 1]), (True, [0, 1, 0])):
            self.assertEqual([cast for cast, _ in bench.order(groups, ["noop"], 2, one_by_one)], casts)

    def done(self, groups: list[measures.Group], cast: int) -> list[tuple[str, str]]:
        return [(group.name, driver) for batch in bench.work(groups, ["gpu", "noop"], cast) for group, driver in batch]


# A lane that answers each command with the value of an expression, which may use `cast`, its number.
_LANE = """
import json, os, sys
cast = int(os.getcwd().rpartition("-")[2])
print(json.dumps({"event": "ready"}), flush=True)
for line in sys.stdin:
    print(json.dumps({"event": "sample"} | (%s)), flush=True)
"""


class Casts(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        subjects = {name: Subject(name, "") for name in (BARE, CURB)}
        self.setting = Setting(BUILD, Path(temporary.name), subjects, None, casts=3)

    def run_of(self, answers: dict[str, str], rows: list[Row]) -> Run:
        lanes = {name: LaneSpec(name, ("PYTHON", "-c", _LANE % answer)) for name, answer in answers.items()}
        run = Run(Group("group", ("noop",), lanes, rows, count=1), "noop", self.setting)
        for _ in range(run.casts):
            measured([run])
        return run

    def test_each_cast_is_a_process_of_its_own_and_takes_its_share_of_the_pairs(self) -> None:
        answers = {BARE: "{'ns': 1}", CURB: "{'ns': os.getpid()}"}
        (result,) = self.run_of(answers, [Row("row", CURB, BARE)]).results()
        assert result.figure
        self.assertEqual(result.figure.pairs, 31)
        self.assertEqual(len(set(result.casts)), 3)

    def test_direct_functions_are_the_base_of_comparison(self) -> None:
        answers = {BARE: "{'ns': 1, 'direct_ns': 1}", CURB: "{'ns': 6 * cast, 'direct_ns': 3 * cast}"}
        rows = [Row("row", BARE, None, within=True), Row("row", CURB, BARE, within=True)]
        control, result = self.run_of(answers, rows).results()
        assert control.figure and control.figure.ratio and result.figure and result.figure.ratio
        self.assertEqual((control.against, control.figure.ratio.median, control.met), (DIRECT, 1, None))
        self.assertEqual((result.against, result.casts, result.figure.ratio.high), (DIRECT, (2, 2, 2), 2))

    def test_without_direct_functions_the_base_is_the_bare_process(self) -> None:
        answers = {BARE: "{'ns': 2, 'direct_ns': 2}", CURB: "{'ns': 6, 'no_direct': 'no cuFunction'}"}
        (result,) = self.run_of(answers, [Row("row", CURB, BARE, within=True)]).results()
        self.assertEqual((result.against, result.casts), (BARE, (3, 3, 3)))
        self.assertIn("no cuFunction", " ".join(result.notes))

    def test_a_failed_cast_is_reported_and_the_others_count(self) -> None:
        answers = {BARE: "{'ns': 1}", CURB: "{'ns': 2} if cast == 1 else sys.exit('no such luck')"}
        (result,) = self.run_of(answers, [Row("row", CURB, BARE)]).results()
        self.assertEqual((result.casts, result.lost), ((2,), True))
        self.assertIn("no such luck", " ".join(result.notes))

    def test_a_program_fails_the_bench_only_if_it_runs_without_curb(self) -> None:
        for bare, curb, fails in (("{'ns': 1}", "0/0", True), ("0/0", "0/0", False), ("0/0", "{'ns': 1}", False)):
            with self.subTest(bare=bare, curb=curb):
                run = self.run_of({BARE: bare, CURB: curb}, [Row("row", BARE, None), Row("row", CURB, BARE)])
                run.group.program = True
                found = run.results()
                self.assertEqual([bench.is_failure(result, found) for result in found], [False, fails])
                run.group.program = False
                self.assertEqual([bench.is_failure(result, found) for result in found], [bare == "0/0", curb == "0/0"])

    def test_nothing_begins_when_time_is_over(self) -> None:
        self.setting.deadline = 0
        (result,) = self.run_of({CURB: "{'ns': 1}"}, [Row("row", CURB, None)]).results()
        self.assertEqual((result.figure, result.why), (None, NO_TIME))

    def resumed(self, casts: int, only: str = "group") -> list[Result]:
        """Measures a group in three casts, and reads the results back as a run of `casts` casts of the group `only` does."""
        rows = [Row("row", CURB, BARE), Row("no loss", BARE, None)]
        run = self.run_of({BARE: "{'ns': 1}", CURB: "{'ns': 2 * cast}"}, rows)
        about = {"machine": "2-core machine", "date": "2026-01-01"}
        written.write(run.results(), about, list(self.setting.subjects.values()), self.setting.folder)
        found = written.read(self.setting.folder, [run.group], {only}, casts)
        assert found
        self.assertEqual(found[:2], (about, [BARE, CURB]))
        self.assertIn(found[2], ([], run.results()))
        return found[2]

    def test_a_measured_group_is_read_back_as_it_was_written(self) -> None:
        self.assertEqual([result.row.name for result in self.resumed(3)], ["row", "no loss"])

    def test_a_group_of_fewer_casts_is_measured_again(self) -> None:
        self.assertEqual(self.resumed(4), [])

    def test_a_group_that_is_not_measured_again_is_kept(self) -> None:
        self.assertEqual(len(self.resumed(4, only="another group")), 2)

    def test_a_group_without_time_is_measured_again(self) -> None:
        self.setting.deadline = 0
        self.assertEqual(self.resumed(1), [])


class Environments(unittest.TestCase):
    def test_programs_get_of_curbs_variables_those_of_the_simulated_driver_alone(self) -> None:
        shell = {"CURB_CAP": "1GiB", "CURB_NAP": "1m", "CURB_TURN": "1m", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "LD_PRELOAD": "/a.so"}
        kept = {"CURB_SIM_GPUS": "2", "HOME": "/home/a"}
        with mock.patch.dict(os.environ, shell | kept, clear=True):
            self.assertEqual(shell_environment(), kept)


class Pages(unittest.TestCase):
    def test_a_page_links_the_file_that_is_written_also_by_a_python_without_lzma(self) -> None:
        result = report.Result({"gpu": "GPU", "date": "2026-01-01"}, [report.Row("case", figures={"run.html": "<p>text</p>"})])
        for lzma in (report.lzma, None):
            with mock.patch.object(report, "lzma", lzma), tempfile.TemporaryDirectory() as folder:
                page, *files = report.write(result, Path(folder), "gpu")
                self.assertIn(f"[case](raw/{files[-1].name})", page.read_text())


class Directly(unittest.TestCase):
    def functions(self, driver: str, subject: Subject, folder: Path) -> dict[str, tuple[str, str]]:
        """Returns for each function the address that programs find, and that of the driver's own."""
        setting = Setting(BUILD, folder, {}, None)
        env = setting.environment(driver) | subject.preload(folder)
        probe = [str(BUILD / "tests" / "bench_probe"), "--direct"]
        said = subprocess.run(probe, env=env, capture_output=True, text=True, check=True).stdout
        return {name: (found, own) for name, found, own in (line.split() for line in said.splitlines())}

    def test_the_drivers_own_functions_are_found_behind_a_preload(self) -> None:
        bare, curb, *_ = own_subjects(BUILD / "lib" / "libcurb.so")
        for driver in ("noop", "sim"):
            with self.subTest(driver), tempfile.TemporaryDirectory() as folder:
                plain = self.functions(driver, bare, Path(folder))
                self.assertEqual([name for name, (found, own) in plain.items() if found != own], [])
                capped = self.functions(driver, curb, Path(folder))
                differ = {name for name, (found, own) in capped.items() if found != own}
                self.assertLessEqual({"cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetInfo_v2", "cuLaunchKernel"}, differ)


# A program that finds the driver as the CUDA runtime does. total() returns the memory of the GPU; under a cap that is the cap.
_PROGRAM = """
import ctypes, sys
from ctypes import byref, c_size_t, c_uint64, c_void_p
sys.path.append(%r)
import turns

cuda = ctypes.CDLL("libcuda.so.1")

def function(name, *types):
    address = c_void_p()
    assert cuda.cuGetProcAddress_v2(name, byref(address), 12000, c_uint64(0), None) == 0
    return ctypes.CFUNCTYPE(ctypes.c_int, *types)(address.value)

context, block, free_bytes, all_bytes = c_void_p(), c_uint64(), c_size_t(), c_size_t()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
allocate, free = function(b"cuMemAlloc", c_void_p, c_size_t), function(b"cuMemFree", c_uint64)
info = function(b"cuMemGetInfo", c_void_p, c_void_p)
assert ctypes.cast(info, c_void_p).value == ctypes.cast(cuda.cuMemGetInfo_v2, c_void_p).value, "the same has two addresses"

def total():
    assert info(ctypes.addressof(free_bytes), ctypes.addressof(all_bytes)) == 0
    return all_bytes.value
"""


class Switched(unittest.TestCase):
    """Programs behind libbench_switch.so, on the simulated driver."""

    def lane(self, subject: str, script: str, *behind: Path) -> Lane:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        setting = Setting(BUILD, self.folder, {}, None)
        (found,) = (one for one in own_subjects(BUILD / "lib" / "libcurb.so") if one.name == subject)
        env = setting.environment("sim") | found.preload(self.folder, setting.switch)
        env["LD_PRELOAD"] = ":".join([env["LD_PRELOAD"], *map(str, behind)])
        programs = str(Path(bench.__file__).parent / "programs")
        lane = Lane([sys.executable, "-c", _PROGRAM % programs + script], env, self.folder)
        self.addCleanup(lane.close)
        return lane

    def test_a_sample_has_steps_by_the_preload_and_by_the_driver_and_the_first_take_turns(self) -> None:
        script = "seen = []\nturns.serve(lambda count: seen.extend([total()] * count), lambda: seen)"
        whole = None
        for subject in (BARE, CURB):
            with self.subTest(subject):
                lane = self.lane(subject, script)
                lane.ready(20)
                times = [lane.sample(1, 20) for _ in range(2)]
                self.assertEqual([one.no_direct for one in times if one.direct_ns is None], [])
                seen = lane.finish(20)
                whole = whole or seen[0]
                first = 64 * 2**30 if subject == CURB else whole
                # Each has its untimed step before it.
                self.assertEqual(seen, [first] * 2 + [whole] * 4 + [first] * 2 + [whole] * 2 + [first] * 4 + [whole] * 2)

    def test_books_have_the_memory_that_the_preload_allocated_and_no_other(self) -> None:
        lane = self.lane(TRACE, """
switch = ctypes.CDLL(None).bench_switch
sizes = iter((3, 5, 7, 9))
for by, freed_by in ((0, 0), (1, 1), (1, 0), (0, 1)):
    switch(by)
    assert allocate(ctypes.addressof(block), next(sizes) << 20) == 0
    switch(freed_by)
    assert free(block.value) == 0
turns.say("done")
""")  # fmt: skip
        lane.expect("done", 20)
        lane.close()
        lines = (self.folder / "trace.json").read_text().splitlines()
        events = [json.loads(line.rstrip(",")) for line in lines if line.startswith("{")]
        plain = [one for one in events if one["name"] in ("alloc", "free") and one["args"]["kind"] == "plain"]
        found = [(one["name"], one["args"]["bytes"] >> 20) for one in plain]
        self.assertEqual(found, [("alloc", 3), ("free", 3), ("alloc", 9), ("free", 9)])

    def test_look_ups_that_depend_on_the_caller_pass(self) -> None:
        script = "look_up = ctypes.CDLL(None).second_preload_next_marker\nlook_up.restype = c_void_p\nturns.say('next', at=look_up())"
        for subject in (BARE, CURB):
            lane = self.lane(subject, script, BUILD / "tests" / "libsecond_preload.so")
            self.assertIsNone(lane.expect("next", 20)["at"])  # not its own, which is next to the switch


class Lanes(unittest.TestCase):
    def test_a_lane_that_ends_or_stays_silent_fails_with_the_reason(self) -> None:
        for script, timeout_s, why in (
            ("echo no such thing >&2; exit 3", 20, "ended with status 3 before 'ready': no such thing"),
            ("sleep 60", 0.1, "no event within 0.1 s"),
        ):
            with self.subTest(script), tempfile.TemporaryDirectory() as folder:
                lane = Lane(["sh", "-c", script], {"PATH": "/usr/bin:/bin"}, Path(folder))
                with self.assertRaisesRegex(ProgramFailed, why):
                    lane.ready(timeout_s)
                lane.close()

    def test_a_lane_that_does_not_end_is_killed_with_children_in_sessions_of_their_own(self) -> None:
        script = """setsid sleep 60 & echo '{"event": "ready", "pid": '$!'}'; wait"""
        with tempfile.TemporaryDirectory() as folder:
            lane = Lane(["sh", "-c", script], {"PATH": "/usr/bin:/bin"}, Path(folder))
            child = Path(f"/proc/{lane.expect('ready', 20)['pid']}/stat")
            self.assertTrue(child.exists())
            lane.close()
            for _ in range(100):
                try:
                    if ") Z " in child.read_text():  # dead; init has to reap it
                        return
                except OSError:
                    return
                time.sleep(0.1)
            self.fail("the child still runs")


if __name__ == "__main__":
    BUILD = Path(sys.argv.pop(1)).resolve()
    unittest.main()
