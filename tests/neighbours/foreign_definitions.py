#!/usr/bin/env python3
"""Writes a host's own definitions of every C++ name within libcurb.so: foreign_definitions.py LIBCURB CURBS.s ALL.s

The functions of both files end the program, and the variables are zeros, so that a use in place of libcurb.so's own shows at
once. The first file has the names of nlohmann/json, spdlog, fmt and curb, and can be in any process. The second has libstdc++'s
names too, operator new and __cxa_throw among them, and is for programs that are not written in C++.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

AARCH64 = 183
"""e_machine of an ELF header, its bytes 18 and 19."""
LIBRARIES = re.compile(r"8nlohmann|6spdlog|3fmt|4curb")


def definitions(names: dict[str, str], trap: str) -> str:
    lines = []
    names = {"neighbour_foreign_definitions": "T"} | names
    for name, kind in sorted(names.items()):
        section, type_ = (".text", "@function") if kind in "tTwWi" else (".data", "@object")
        body = trap if section == ".text" else ".skip 64"
        lines.append(f"{section}\n.globl {name}\n.type {name}, {type_}\n.p2align 4\n{name}:\n{body}\n")
    return "".join(lines) + '.section .note.GNU-stack,"",@progbits\n'


def main() -> int:
    library, curbs, all_of_them = (Path(argument) for argument in sys.argv[1:4])
    command = ["nm", "--defined-only", str(library)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in output.splitlines())
    names = {name: kind for _, kind, name in (row for row in rows if len(row) == 3)
             if re.fullmatch(r"(_Z|__cxa_|__gxx_)\w+", name) and kind.lower() in "twvbdri"}
    trap = "udf #0" if int.from_bytes(library.read_bytes()[18:20], "little") == AARCH64 else "ud2"
    curbs.write_text(definitions({name: kind for name, kind in names.items() if LIBRARIES.search(name)}, trap))
    all_of_them.write_text(definitions(names, trap))
    return 0


if __name__ == "__main__":
    sys.exit(main())
