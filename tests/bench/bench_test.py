"""What the bench makes of samples, and of what is typed."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import bench
import measures
from lane import Lane, LaneFailed
from pairs import Figure
from subjects import peer


class Pairs(unittest.TestCase):
    def test_a_ratio_is_the_median_of_pairs_and_not_the_ratio_of_medians(self) -> None:
        figure = Figure.of([2.0, 40.0, 600.0], [1.0, 10.0, 100.0], rates=False)
        assert figure.ratio and figure.base_ns
        self.assertEqual(figure.ratio.median, 4.0)
        self.assertEqual((figure.ratio.low, figure.ratio.high), (3.0, 5.0))
        self.assertEqual(figure.base_ns.median, 10.0)

    def test_of_rates_more_is_better(self) -> None:
        figure = Figure.of([2.0, 2.0], [1.0, 1.0], rates=True)
        assert figure.ratio
        self.assertEqual(figure.ratio.median, 0.5)

    def test_what_nothing_was_compared_with_has_no_ratio(self) -> None:
        self.assertIsNone(Figure.of([2.0], None, rates=False).ratio)


class Targets(unittest.TestCase):
    def test_a_ratio_is_held_against_its_target(self) -> None:
        figure = Figure.of([102.0], [100.0], rates=False)
        self.assertTrue(measures.at_most(1.02).met(figure))
        self.assertFalse(measures.at_most(1.01).met(figure))

    def test_rows_are_of_lanes_that_there_are(self) -> None:
        for group in measures.groups(["peer", "mps"]):
            for row in group.rows:
                self.assertIn(row.lane, group.lanes)
                self.assertTrue(row.against is None or row.against in group.lanes, row.name)

    def test_no_two_groups_of_a_driver_have_one_name(self) -> None:
        for driver in measures.ALL:
            names = [group.name for group in measures.groups([]) if driver in group.drivers]
            self.assertEqual(len(set(names)), len(names))


class Peers(unittest.TestCase):
    def test_a_peer_is_a_name_a_library_and_variables(self) -> None:
        with tempfile.NamedTemporaryFile(suffix=".so") as library:
            subject = peer(f"other={library.name},LIMIT=8g,PLACE=/a=b")
        self.assertEqual((subject.name, dict(subject.env)), ("other", {"LIMIT": "8g", "PLACE": "/a=b"}))

    def test_what_is_wrong_with_a_peer_is_said(self) -> None:
        for text in ("/lib/other.so", "=x", "curb=/bin/true", "other=/nowhere.so", "other=/bin/true,LIMIT"):
            with self.subTest(text), self.assertRaises(ValueError):
                peer(text)


class Work(unittest.TestCase):
    def test_every_group_is_run_once_on_each_of_its_drivers(self) -> None:
        groups = measures.groups([])
        done = [(group.name, driver) for batch in bench.work(groups, ["gpu", "noop"]) for group, driver in batch]
        self.assertEqual(len(set(done)), len(done))
        wanted = {(group.name, driver) for group in groups for driver in group.drivers if driver in ("gpu", "noop")}
        self.assertEqual(set(done), wanted - {(group.name, "noop") for group in groups if group.once})


class Lanes(unittest.TestCase):
    def test_a_lane_that_ends_says_why(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            lane = Lane(["sh", "-c", "echo no such thing >&2; exit 3"], {"PATH": "/usr/bin:/bin"}, Path(folder))
            with self.assertRaisesRegex(LaneFailed, "ended with status 3: no such thing"):
                lane.ready(20)
            lane.close()

    def test_a_lane_that_is_silent_is_waited_for_no_longer_than_is_said(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            lane = Lane(["sleep", "60"], {"PATH": "/usr/bin:/bin"}, Path(folder))
            with self.assertRaisesRegex(LaneFailed, "said nothing"):
                lane.ready(0.1)
            lane.close()


if __name__ == "__main__":
    unittest.main()
