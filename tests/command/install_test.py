#!/usr/bin/env python3
"""The files of `cmake --install` are complete, and work there and after a move: install_test.py BUILD CMAKE"""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from skipping import has_man, run_cases  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = sorted((ROOT / "config/examples").glob("*.json"))
FILES = """bin/curb bin/curb-preload bin/curb-sim-books lib/curb/libcurb.so lib/curb/sim/libcuda.so.1 lib/curb/sim/libnvidia-ml.so.1
share/man/man1/curb.1 share/man/man1/curb-sim-books.1 share/man/man5/curb-policy.5 share/man/man8/curb-preload.8
share/bash-completion/completions/curb share/fish/vendor_completions.d/curb.fish share/zsh/site-functions/_curb share/curb/policy.schema.json
share/doc/curb/LICENSE""".split() + [f"share/doc/curb/examples/{path.name}" for path in EXAMPLES]
DOCUMENTS = [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".svg", ".png")]
DOCUMENTS += (ROOT / "tests/command/answers").iterdir()
DOCUMENTS += [ROOT / name for name in """README.md CHANGELOG.md SECURITY.md integrations/jupyterhub/jupyterhub_config.py
integrations/kubernetes/Containerfile integrations/kubernetes/admission.yaml integrations/kubernetes/nodes.yaml
integrations/kubernetes/pod.yaml integrations/ray/train.py integrations/slurm/ceiling.json integrations/slurm/job_submit.lua
integrations/slurm/plugstack.conf integrations/slurm/task-prolog integrations/systemd/curb.conf""".split()]
FILES += [f"share/doc/curb/{path.relative_to(ROOT)}" for path in DOCUMENTS]
NOT_INSTALLED = ("CONTRIBUTING.md", "tests/matrix/", "tests/process/", "docs/results/raw/", "config/examples")
"""Documents link to these too. Only developers of curb need them, except for the examples, which are in examples/."""
ASKS = ROOT / "tests/documents/train.py"
"""A program that asks for eight pieces of 256 MiB, and prints how many it got."""


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        first, cls.folder = Path(cls.temporary.name, "first"), Path(cls.temporary.name, "moved")
        # Install as an administrator with a strict umask does.
        strictly = ["sh", "-c", 'umask 077 && exec "$@"', "sh"]
        # A component has a manifest of its own, so the one by which users uninstall stays.
        install = [CMAKE, "--install", BUILD, "--component", "Unspecified", "--prefix", first]
        subprocess.run([*strictly, *install], check=True, stdout=subprocess.DEVNULL)
        cls.from_the_first = cls.ran("run", "--sim", "--cap", "1GiB", "--dry-run", "--", "true", prefix=first)
        cls.first = first
        first.rename(cls.folder)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @classmethod
    def ran(cls, *words, prefix=None):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("CURB_", "LD_"))}
        environment["HOME"] = cls.temporary.name
        command = [Path(prefix or cls.folder, "bin/curb"), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def test_it_has_all_files_and_no_others(self):
        there = {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if not path.is_dir()}
        self.assertEqual(there, set(FILES))

    def test_everybody_may_read_it(self):
        paths = [path for path in self.folder.rglob("*") if path.is_file() or "curb" in path.relative_to(self.folder).parts]
        for path in paths:
            wanted = 0o755 if path.is_dir() or path.parent.name == "bin" else 0o644
            self.assertEqual(path.stat().st_mode & wanted, wanted, path)
            self.assertEqual(path.stat().st_mode & 0o022, 0, path)

    def test_it_finds_its_libraries_where_it_was_put(self):
        for said in (f"LD_PRELOAD={self.first}/lib/curb/libcurb.so\n", f"LD_LIBRARY_PATH={self.first}/lib/curb/sim\n"):
            self.assertIn(said, self.from_the_first.stdout)

    def test_moved_it_caps_a_program_on_its_simulated_driver(self):
        for cap, pieces in ("1GiB", 1), ("8GiB", 8):
            run = self.ran("run", "--sim", "--cap", cap, "--", sys.executable, ASKS)
            self.assertEqual((run.returncode, run.stdout), (0, f"trained with {pieces} of 8 pieces\n"), run.stderr)
            self.assertNotIn("cannot be preloaded", run.stderr)

    def test_moved_its_examples_are_valid_and_its_schema_is_that_of_the_command(self):
        examples = sorted((self.folder / "share/doc/curb/examples").iterdir())
        check = self.ran("policy", "check", *examples)
        self.assertEqual((check.returncode, check.stderr), (0, ""))
        self.assertEqual((self.folder / "share/curb/policy.schema.json").read_text(), self.ran("policy", "schema").stdout)

    def test_each_file_that_a_help_text_a_message_or_a_manual_page_names_is_there(self):
        named = set()
        pages = [path for path in (self.folder / "share/man").rglob("*") if path.is_file()]
        for path in [self.folder / "lib/curb/libcurb.so", *(self.folder / "bin").iterdir(), *pages]:
            text = re.sub(rb'^\.\\".*$', b"", path.read_bytes(), flags=re.MULTILINE).replace(b"\\-", b"-")  # a page's comments
            named.update(re.findall(rb"\b(?:docs|integrations|examples)/(?:[\w./-]*\w)?", text))
        self.assertGreater(len(named), 5)
        self.assertEqual([name for name in named if not (self.folder / "share/doc/curb" / name.decode()).exists()], [])

    def test_links_between_its_documents_lead_to_files(self):
        folder = self.folder / "share/doc/curb"
        for document in folder.rglob("*.md"):
            for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", document.read_text()):
                target = os.path.relpath(document.parent / link, folder)
                if not target.startswith(NOT_INSTALLED):
                    self.assertTrue((folder / target).exists(), f"{document.relative_to(folder)} links to {link}")

    def test_moved_its_other_commands_start(self):
        for name in ("curb-preload", "curb-sim-books"):
            run = subprocess.run([self.folder / "bin" / name], capture_output=True, text=True, check=False)
            self.assertEqual(run.returncode, 2, run.stderr)
            self.assertIn(f"usage: {name}", run.stdout + run.stderr)
        completion = self.folder / "share/bash-completion/completions/curb"
        run = subprocess.run(["bash", "-c", f"source {completion} && complete -p curb"], capture_output=True, text=True, check=False)
        self.assertEqual((run.returncode, run.stderr), (0, ""))

    @unittest.skipUnless(has_man(), "man is not here (scripts/setup test)")
    def test_moved_man_finds_its_pages(self):
        for page, file in {"curb": "man1/curb.1", "curb-policy": "man5/curb-policy.5", "curb-preload": "man8/curb-preload.8"}.items():
            run = subprocess.run(
                ["man", "-M", self.folder / "share/man", "-w", page], capture_output=True, text=True, check=False
            )
            self.assertEqual(run.stdout.strip(), str(self.folder / "share/man" / file))


if __name__ == "__main__":
    BUILD, CMAKE = sys.argv[1:3]
    run_cases()
