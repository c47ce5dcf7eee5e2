#!/usr/bin/env python3
"""Builds curb under its own preload: own_build_test.py BUILD

The compiler and the linker run without LD_PRELOAD=libcurb.so and a cap, then with both, in the same folder. The files that they
make must be identical; the program runs under the preload too. They build some files of policy/; with CURB_NIGHTLY=1 cmake
and ninja build libcurb.so and curb too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "matrix"))
import matrix  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = ("size", "words")
PROGRAM = """
#include <cstdio>
#include "policy/values/size.hpp"
int main() {
    const auto size = curb::policy::parse_size("8GiB");
    std::puts(size ? curb::policy::format(*size).c_str() : size.error().c_str());
    return size ? 0 : 1;
}
"""


def build(folder: Path, preload: dict[str, str]) -> dict[str, str]:
    """Returns the name and digest of each file that was made."""
    environment = {"CCACHE_DISABLE": "1"} | dict.fromkeys(("HOME", "TMPDIR", "XDG_RUNTIME_DIR"), str(folder))
    environment |= {name: os.environ[name] for name in ("PATH", "CC", "CXX") if name in os.environ} | preload

    def run(*command: str) -> str:
        done = subprocess.run(command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, check=False)
        if done.returncode != 0 or "ld.so" in done.stderr or "curb[" in done.stderr:
            said = done.stdout[-2000:] + done.stderr[-2000:]
            raise SystemExit(f"{' '.join(command)}, {preload}: {done.returncode}\n{said}")
        return done.stdout

    out = folder / "build"
    out.mkdir()
    if matrix.NIGHTLY:
        run("cmake", "-S", str(ROOT), "-B", str(out), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DCURB_TESTS=OFF",
            "-DCCACHE=CCACHE-NOTFOUND")
        run("cmake", "--build", str(out), "--parallel", "2", "--target", "curb_shim", "curb")
    (folder / "program.cpp").write_text(PROGRAM)
    sources = ["program.cpp", *(str(ROOT / f"policy/values/{name}.cpp") for name in FILES)]
    run(os.environ.get("CXX", "c++"), "-std=c++20", "-save-temps=obj", f"-I{ROOT}/policy/include", *sources, "-o", str(out / "program"))
    if (said := run(str(out / "program"))) != "8GiB\n":
        raise SystemExit(f"the program says {said!r}")
    patterns = ("*.o", "*.a", "libcurb.so", "bin/curb", "program")
    made = [path for pattern in patterns for path in out.rglob(pattern) if path.is_file()]
    digests = {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in made}
    shutil.rmtree(out)
    return digests


def main() -> int:
    library = Path(sys.argv[1]).resolve() / "lib/libcurb.so"
    with tempfile.TemporaryDirectory(prefix="curb-own-build-") as temporary:
        folder = Path(temporary)
        bare = build(folder, {})
        own = build(folder, {"LD_PRELOAD": str(library), "CURB_CAP": "1GiB"})
    differ = sorted(name for name in bare.keys() | own.keys() if bare.get(name) != own.get(name))
    print(f"{len(bare)} files are the same" if not differ else f"built under the preload these differ: {differ}")
    if not differ:
        matrix.report("own_builds", 1)
    return 1 if differ or len(bare) <= len(FILES) else 0


if __name__ == "__main__":
    sys.exit(main())
