"""Compares shim/abi with a toolkit's <cuda.h>, by compiling cuda_abi_matches.cpp against both.

usage: cuda_abi_check.py CXX CUDA_INCLUDE SHIM OUTPUT

The lists to compare come from our headers, so that none can be forgotten: every enumerator, and every function that this
toolkit declares (older ones lack newer functions).
"""

import re
import subprocess
import sys
from pathlib import Path


def main() -> int:
    compiler, cuda, shim, output = sys.argv[1], *map(Path, sys.argv[2:5])
    # cuda.h declares the older variants of versioned functions only with this macro, which is NVIDIA's own.
    seen = ["-std=c++20", "-D__CUDA_API_VERSION_INTERNAL", f"-I{cuda}"]
    header = subprocess.run([compiler, "-E", "-P", *seen, "-x", "c++", str(cuda / "cuda.h")], check=True,
                            capture_output=True, text=True).stdout
    declared = set(re.findall(r"\bCUresult\s+(cu\w+)\s*\(", header))

    functions = re.findall(r"^CURB_CU\w*\((\w+),.*$", (shim / "abi" / "cuda_functions.def").read_text(), re.M)
    compared = [name for name in functions if name in declared]
    (output / "toolkit_functions.inc").write_text("".join(f"SAME_FUNCTION({name})\n" for name in compared))
    enumerators = re.findall(r"\b(CU[A-Z0-9_]+) = ", (shim / "abi" / "cuda_types.h").read_text())
    known = [name for name in enumerators if re.search(rf"\b{name}\b", header)]
    (output / "toolkit_enumerators.inc").write_text("".join(f"SAME_VALUE({name});\n" for name in known))

    source = Path(__file__).with_name("cuda_abi_matches.cpp")
    result = subprocess.run([compiler, "-fsyntax-only", *seen, f"-I{shim}", f"-I{output}", str(source)])
    unknown = sorted(set(functions) - set(compared)) + sorted(set(enumerators) - set(known))
    print(f"compared {len(compared)} functions and {len(known)} constants with {cuda}/cuda.h; "
          f"not in this toolkit: {' '.join(unknown) or 'none'}")
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
