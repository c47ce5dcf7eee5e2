#!/usr/bin/env python3
"""What `cmake --install` puts where, and that it works from there: install_test.py CMAKE BUILD-FOLDER"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FILES = """bin/curb bin/curb-preload bin/curb-sim-books lib/curb/libcurb.so lib/curb/sim/libcuda.so.1 lib/curb/sim/libnvidia-ml.so.1
share/man/man1/curb.1 share/man/man5/curb-policy.5 share/bash-completion/completions/curb""".split()


class Installed(unittest.TestCase):
    def test_it_runs_from_where_it_was_put(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([CMAKE, "--install", BUILD, "--prefix", folder], check=True, stdout=subprocess.DEVNULL)
            there = {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if not path.is_dir()}
            self.assertEqual(there, set(FILES))
            environment = {name: value for name, value in os.environ.items() if not name.startswith(("CURB_", "LD_"))}
            command = [f"{folder}/bin/curb", "run", "--sim", "--cap", "1GiB", "--dry-run", "--", "true"]
            run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            self.assertIn(f"LD_PRELOAD={folder}/lib/curb/libcurb.so\n", run.stdout)
            self.assertIn(f"LD_LIBRARY_PATH={folder}/lib/curb/sim\n", run.stdout)
            command.remove("--dry-run")
            run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            self.assertEqual((run.returncode, run.stdout), (0, ""))
            self.assertNotIn("cannot be preloaded", run.stderr)


if __name__ == "__main__":
    CMAKE, BUILD = sys.argv[1:3]
    del sys.argv[1:3]
    unittest.main()
