#!/usr/bin/env python3
"""The page of curb report in a browser: page_test.py BUILD

Headless Chromium, driven by python3-selenium.
"""

import os
import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

from recorded import curb, generated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from skipping import run_cases, skip  # noqa: E402

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    SYSTEM = "/usr/bin/python3"  # distributions install their packages for it, whichever Python is first in PATH
    if os.path.exists(SYSTEM) and os.path.realpath(sys.executable) != os.path.realpath(SYSTEM):
        os.execv(SYSTEM, [SYSTEM, *sys.argv])
    skip("python3-selenium is not installed (scripts/setup test)")

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
DRIVER = shutil.which("chromedriver")
if not CHROMIUM or not DRIVER:
    skip("chromium and chromium-driver are not installed (scripts/setup test)")

EVIL = "python3 </script><script>window.hurt = 1</script> \"><img src=x onerror='window.hurt = 2'>"


def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(service=Service(DRIVER), options=options)


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.trace, cls.counts = generated(cls.folder.name, gpus=2)
        cls.page = cls.page_of(cls.trace)
        cls.browser = browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()
        cls.folder.cleanup()

    @classmethod
    def page_of(cls, trace):
        out = trace.with_suffix(".html")
        curb(CURB, "report", trace, "-o", out)
        return out

    def open(self, page=None, width=1200, scheme="light"):
        self.browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        self.browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        self.browser.get((page or self.page).as_uri())

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def run_script(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def readout(self, gpu=0):
        return self.all(f'section[data-gpu="{gpu}"] .readout')[0].text

    def marked(self, name):
        return sum(int(mark.get_attribute("data-count")) for mark in self.all(f".mark.{name}"))

    def hover(self, across):
        plot = self.all(".plot")[0]
        ActionChains(self.browser).move_to_element_with_offset(
            plot, int((across - 0.5) * plot.size["width"]), int(plot.size["height"] * 0.2)
        ).perform()

    def test_it_loads_without_a_complaint_and_asks_for_nothing(self):
        self.open()
        self.assertEqual(self.browser.get_log("browser"), [])
        asked = self.run_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        self.assertEqual([name for name in asked if not name.startswith("data:")], [])

    def test_every_refusal_wait_and_release_is_marked(self):
        self.open()
        self.assertEqual(self.marked("refuse"), self.counts["refuse"])
        self.assertEqual(self.marked("wait"), self.counts["wait"])
        self.assertEqual(self.marked("release"), 2 * 2)  # two releases of the process, shown on each of two GPUs
        self.assertEqual(self.marked("out"), self.counts["out"] * 2)

    def test_pointing_shows_the_figures_of_that_moment(self):
        self.open()
        self.assertIn("Point at the picture", self.readout())
        self.hover(0.5)
        self.assertRegex(self.readout(), r"^12:3\d:\d\d\.\d{3} · held [\d.]+ GiB · .*allocations [\d.]+ GiB.* · cap 8 GiB")
        held = self.run_script(
            "const gpu = JSON.parse(document.getElementById('trace').textContent);"
            "const half = gpu.begin + (gpu.end - gpu.begin) * 0.5;"
            "return gpu.gpus[0].held[gpu.gpus[0].t.findLastIndex((t) => t <= half)] / 2 ** 30"
        )
        self.assertIn(f"held {round(held, 2):g} GiB", self.readout())

    def times(self, gpu):
        return [label.text for label in self.all(f'section[data-gpu="{gpu}"] .times span')]

    def test_the_axis_has_the_same_times_of_day_with_and_without_the_script(self):
        written = re.search(r'<div class="times">(.*?)</div>', self.page.read_text())[1]
        self.open()
        self.assertEqual(self.times(0), re.findall(r">([^<]+)</span>", written))
        self.assertIn("12:31", self.times(0))
        self.all(".plot")[0].send_keys(Keys.HOME, *"+++++++")
        self.assertRegex(self.times(0)[0], r"^12:30:\d\d(\.\d{3})?$")

    def test_the_processes_of_a_job_are_on_one_page_on_the_same_times(self):
        ranks = [generated(self.folder.name, f"rank{seed}.trace.json", seed=seed)[0] for seed in (1, 2)]
        out = Path(self.folder.name, "job.html")
        curb(CURB, "report", *ranks, "-o", out)
        self.open(out)
        self.assertEqual([heading.text for heading in self.all("h3.part")], [str(rank) for rank in ranks])
        self.assertEqual(self.times(1), self.times(0))
        self.assertEqual(self.times(2), self.times(0))
        plot = self.all(".plot")[2]
        plot.send_keys(Keys.END)
        self.assertRegex(self.readout(2), r"^12:3\d:\d\d\.\d{3} · held 0 B")
        self.assertEqual(self.browser.get_log("browser"), [])

    def test_keys_walk_from_sample_to_sample_and_zoom(self):
        self.open()
        plot = self.all(".plot")[0]
        plot.send_keys(Keys.HOME)
        first = self.readout()
        self.assertIn("12:30:00.000 · held 0 B", first)
        plot.send_keys(Keys.ARROW_RIGHT)
        self.assertNotEqual(self.readout(), first)
        plot.send_keys("+")
        self.assertNotEqual(self.view(), [0, 100000])
        plot.send_keys(Keys.ESCAPE)
        self.assertEqual(self.view(), [0, 100000])

    def view(self):
        box = self.all(".plot > svg")[0].get_dom_attribute("viewBox").split()
        return [float(box[0]), float(box[2])]

    def test_dragging_zooms_and_marks_stay_at_their_times(self):
        self.open()
        plot = self.all(".plot")[0]
        width = plot.size["width"]
        ActionChains(self.browser).move_to_element_with_offset(plot, int(-0.2 * width), 20).click_and_hold().move_by_offset(
            int(0.4 * width), 0
        ).release().perform()
        begin, across = self.view()
        self.assertAlmostEqual(begin, 30_000, delta=300)
        self.assertAlmostEqual(across, 40_000, delta=600)
        for mark in self.all('section[data-gpu="0"] .mark.refuse'):
            x = float(mark.get_attribute("data-x"))
            if begin / 1e5 <= x <= (begin + across) / 1e5:
                left = self.run_script("return parseFloat(arguments[0].style.left)", mark)
                self.assertAlmostEqual(left, (x * 1e5 - begin) / across * 100, delta=0.1)
            else:
                self.assertFalse(mark.is_displayed())

    def test_a_mark_shows_its_refusal_by_key_and_by_pointer(self):
        self.open()
        mark = self.all('section[data-gpu="0"] .mark.refuse')[0]
        self.run_script("arguments[0].focus()", mark)
        self.assertIn("refused 3 GiB of allocations: the cap", self.readout())
        self.assertEqual(mark.get_attribute("title"), mark.get_attribute("aria-label"))

    def test_text_from_the_trace_does_no_harm(self):
        trace, _ = generated(self.folder.name, "evil.trace.json", command=EVIL)
        self.open(self.page_of(trace))
        self.assertIsNone(self.run_script("return window.hurt ?? null"))
        self.assertEqual(self.all("h1")[0].text, EVIL)
        self.assertEqual(self.browser.get_log("browser"), [])

    def test_nothing_is_wider_than_a_narrow_window(self):
        self.open(width=400)
        self.assertLessEqual(self.run_script("return document.documentElement.scrollWidth"), 400)

    def test_dark_and_light_have_their_own_grounds(self):
        grounds = []
        for scheme in ("light", "dark"):
            self.open(scheme=scheme)
            grounds.append(self.run_script("return getComputedStyle(document.body).backgroundColor"))
        self.assertEqual(grounds, ["rgb(255, 255, 255)", "rgb(22, 24, 27)"])


if __name__ == "__main__":
    CURB = sys.argv[1] + "/bin/curb"
    run_cases()
