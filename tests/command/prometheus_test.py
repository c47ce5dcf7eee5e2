#!/usr/bin/env python3
"""The queries of docs/METRICS.md in a real Prometheus: prometheus_test.py BUILD

Prometheus scrapes curb's metrics in both ways that the document names: from a web server with the output of `curb
metrics`, and from node_exporter's textfile collector. It also scrapes a stand-in for dcgm-exporter.
"""

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import unittest
import urllib.parse
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from simulated import Machine, within  # noqa: E402
from skipping import run_cases, skip  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
FETCHED = ROOT / ".prometheus" / "usr" / "bin"
DOCUMENT = ROOT / "docs" / "METRICS.md"

CONFIGURATION = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - {{job_name: direct, metrics_path: /direct.txt, static_configs: [{{targets: ["127.0.0.1:{files}"]}}]}}
  - {{job_name: dcgm, metrics_path: /dcgm.txt, static_configs: [{{targets: ["127.0.0.1:{files}"]}}]}}
  - {{job_name: node, static_configs: [{{targets: ["127.0.0.1:{node}"]}}]}}
"""


def program(name):
    return shutil.which(name) or shutil.which(name, path=FETCHED)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def running(log, *command):
    with open(log, "w", encoding="utf-8") as said:
        child = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


class Scraped(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with contextlib.ExitStack() as stack:
            machine = cls.machine = stack.enter_context(Machine(BUILD, gpus=2))
            cls.process = machine.run_program()
            cls.process.asked("pool")
            machine.run_program(machine.bare)
            folder = machine.folder / "texts"
            folder.mkdir()
            assert machine.curb("metrics", "--textfile", folder / "curb.prom").returncode == 0
            written = machine.curb("metrics")
            assert written.returncode == 0, written.stderr
            (folder / "direct.txt").write_text(written.stdout)
            uuids = re.findall(r'curb_gpu_info\{gpu="\d+",uuid="([^"]+)"', written.stdout)
            (folder / "dcgm.txt").write_text("".join(
                f'# TYPE {name} gauge\n' + "".join(f'{name}{{gpu="{at}",UUID="{uuid}"}} {value}\n' for at, uuid in enumerate(uuids))
                for name, value in (("DCGM_FI_DEV_FB_USED", 1024), ("DCGM_FI_DEV_GPU_UTIL", 0))
            ))
            cls.logs, files, node, cls.port = machine.folder, free_port(), free_port(), free_port()
            (machine.folder / "prometheus.yml").write_text(CONFIGURATION.format(files=files, node=node))
            for log, *command in (
                ("files", sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", folder, files),
                ("node", program("prometheus-node-exporter"), "--collector.disable-defaults", "--collector.textfile",
                 f"--collector.textfile.directory={folder}", f"--web.listen-address=127.0.0.1:{node}"),
                ("prometheus", program("prometheus"), f"--config.file={machine.folder}/prometheus.yml",
                 f"--storage.tsdb.path={machine.folder}/data", f"--web.listen-address=127.0.0.1:{cls.port}"),
            ):  # fmt: skip
                stack.enter_context(running(cls.logs / log, *map(str, command)))
            cls.wait_for_three_targets()
            cls.addClassCleanup(stack.pop_all().close)

    @classmethod
    def wait_for_three_targets(cls):
        def has_scraped():
            with contextlib.suppress(OSError, KeyError):
                return len(cls.asked('up == 1')) == 3 and cls.asked('curb_info{job="direct"}')

        assert within(has_scraped), "Prometheus has not scraped everything:\n" + (cls.logs / "prometheus").read_text()[-3000:]

    @classmethod
    def asked(cls, query):
        """Returns the results of a query: a list of (labels, value)."""
        url = f"http://127.0.0.1:{cls.port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return [(one["metric"], float(one["value"][1])) for one in json.load(answer)["data"]["result"]]

    def values(self, query):
        return [value for _, value in self.asked(query)]

    def test_both_ways_have_the_same_figures(self):
        for query in ("curb_held_bytes", "curb_cap_bytes", "curb_gpu_used_bytes", "curb_nvml_used_bytes", "curb_kind_bytes"):
            direct, node = (self.asked(f'{query}{{job="{job}",gpu="0"}}') for job in ("direct", "node"))
            self.assertTrue(direct, query)
            self.assertEqual(sorted(value for _, value in direct), sorted(value for _, value in node), query)

    def test_node_exporter_has_no_complaint(self):
        self.assertEqual(self.values('node_textfile_scrape_error'), [0])
        self.assertNotIn("level=error", (self.logs / "node").read_text())

    def test_the_documents_queries_are_understood_and_find_what_they_are_for(self):
        blocks = re.findall(r"^```promql\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
        queries = [re.sub(r"^#.*\n", "", query) for block in blocks for query in block.split("\n\n")]
        self.assertGreater(len(queries), 8)
        answers = {}
        for query in queries:
            with self.subTest(query):
                # Here each series exists twice. A real machine has one of the two ways.
                answers[query] = self.asked(re.sub(r"\b(curb_\w+)(?!\w)", r'\1{job="node"}', query))
        for part, found in (("/ curb_cap_bytes", 1), ("unless", 1), ("group_left curb_held", 1), ("FB_USED", 1), ("GPU_UTIL", 1)):
            (answer,) = [answers[query] for query in queries if part in query]
            self.assertGreaterEqual(len(answer), found, part)
        (answer,) = [answers[query] for query in queries if "FB_USED" in query]
        (share,) = [value for labels, value in answer if labels["pid"] == str(self.process.pid) and labels["gpu"] == "0"]
        (held,) = self.values(f'curb_held_bytes{{job="node",gpu="0",pid="{self.process.pid}"}}')
        self.assertAlmostEqual(share, held / (1024 << 20))


if __name__ == "__main__":
    BUILD = Path(sys.argv[1]).resolve()
    missing = [name for name in ("prometheus", "prometheus-node-exporter") if not program(name)]
    if missing:
        skip(f"{', '.join(missing)} not here, and could not be fetched (scripts/setup test)")
    run_cases()
