"""For the tests of integrations: the build, and Python environments with packages of PyPI and curb as its wheel installs it.

enter("ray", "ray[default]") restarts the calling script in such an environment, in build/integrations/. If the packages
cannot be installed, it skips the test.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("CURB_BUILD", ROOT / "build")).resolve()
INSIDE = "CURB_TEST_ENVIRONMENT"
sys.path.insert(0, str(ROOT / "tests/common"))
from skipping import skip  # noqa: E402


def need_build() -> None:
    """Skips the test if curb is not built."""
    if not (BUILD / "bin/curb").exists():
        skip(f"{BUILD}/bin/curb is not there; run scripts/build")


def enter(name: str, *packages: str) -> Path:
    """Returns the environment's folder, in a process whose Python is that of the environment."""
    folder = BUILD / "integrations" / name
    if os.environ.get(INSIDE) == name:
        return folder
    need_build()
    python = folder / "bin/python3"
    if not python.exists():
        _run([sys.executable, "-m", "venv", folder], "no Python environment can be made (Debian: python3-venv)")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    _run(install, f"PyPI has not given {' '.join(packages)}")
    _install(folder)
    os.execve(python, [str(python), *sys.argv], {**os.environ, INSIDE: name, "PATH": f"{folder}/bin:{os.environ['PATH']}"})


def _run(command: list[object], why: str) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        skip(f"{why}: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1]}")


def _install(folder: Path) -> None:
    """Installs the existing build as pip installs the wheel: compiling a wheel takes minutes."""
    for component in ([], ["--component", "jupyter"]):
        subprocess.run(["cmake", "--install", BUILD, "--prefix", folder, *component], check=True, stdout=subprocess.DEVNULL)
    version = re.search(r"^project\(curb VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
    assert version
    (site,) = folder.glob("lib/python3*/site-packages")
    shutil.copytree(ROOT / "packaging/python/curb", site / "curb", dirs_exist_ok=True)
    info = site / f"curb_gpu-{version[1]}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: curb-gpu\nVersion: {version[1]}\n")
    files = ["bin/curb", "lib/curb/libcurb.so"]
    (info / "RECORD").write_text("".join(f"{os.path.relpath(folder / file, site)},,\n" for file in files))
