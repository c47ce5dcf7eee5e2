"""Traces for tests, written by generate.py, and curb held against them."""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def generated(folder, name="run.trace.json", **options):
    """The path of a trace, and how many events of each name are in it."""
    path = Path(folder) / name
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    made = subprocess.run(
        [sys.executable, HERE / "generate.py", path, *words], check=True, stdout=subprocess.PIPE, text=True
    )
    return path, json.loads(made.stdout)


def curb(binary, *words, status=0, **options):
    options.setdefault("env", {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "TZ": "UTC"})
    done = subprocess.run(
        [binary, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, **options
    )
    assert done.returncode == status, f"{words}: status {done.returncode}: {done.stderr or done.stdout}"
    return done
