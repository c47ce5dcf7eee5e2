#!/usr/bin/env python3
"""No two types that are linked together have one name: one_definition_check.py BUILD NINJA

The compiler generates functions for each of two such types (a destructor, a vector's push_back). The linker keeps only one
of them for both types, which may crash only where nothing is inlined. BUILD/build.ninja says which objects become one
program or library, with curb's own libraries in it; NINJA's log of dependencies says which files became an object. The
script finds types at the left margin, where clang-format puts those that are in no other, outside of unnamed namespaces.
"""

import re
import subprocess
import sys
from functools import cache
from os.path import normpath
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LINKED = re.compile(r"^build (\S+)[^:\n]*: CXX_(\w+)_LINKER\S* ([^|\n]*)(?:\| ([^|\n]*))?", re.MULTILINE)
NAMESPACE = re.compile(r"(?:inline )?namespace ?([\w:]*) \{$")
TYPE = re.compile(r"(?:struct|class|union|enum(?: class)?) (?:(?:alignas\(.*?\)|\[\[\w+\]\]) )?([\w:]+)(?: final)?(?: :.*)? \{")


@cache
def types_of(file):
    """Returns the place of each type with external linkage in a file: {"curb::cli::Sample": "cli/families.hpp:23"}."""
    found, within = {}, []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if begins := NAMESPACE.match(line):
            within.append(begins[1])
        elif line.startswith("}  // namespace"):
            within.pop()
        elif (defined := TYPE.match(line)) and "" not in within:
            found["::".join([*within, defined[1]])] = f"{file.relative_to(ROOT)}:{number}"
    return found


def made_of(ninja, build):
    """Returns our files that each object was made of."""
    out = {}
    for block in subprocess.run([ninja, "-C", build, "-t", "deps"], check=True, stdout=subprocess.PIPE, text=True).stdout.split("\n\n"):
        first, *files = block.split("\n")
        paths = (Path(normpath(build / file.strip())) for file in files if "/usr/" not in file)
        out[first.partition(":")[0]] = [path for path in paths if path.is_relative_to(ROOT) and not path.is_relative_to(build)]
    return out


def main():
    build, ninja = Path(sys.argv[1]).resolve(), sys.argv[2]
    files = made_of(ninja, build)
    linked = {out: (kind, [*inputs.split(), *others.split()]) for out, kind, inputs, others in LINKED.findall((build / "build.ninja").read_text())}

    def objects(out):
        for one in linked[out][1]:
            if one.endswith(".a") and one in linked:
                yield from objects(one)
            elif one.endswith(".o"):
                yield one

    clashes, programs = {}, [out for out, (kind, _) in linked.items() if kind != "STATIC_LIBRARY"]
    for program in programs:
        places = {}
        for file in {file for one in objects(program) for file in files.get(one, ())}:
            for name, place in types_of(file).items():
                places.setdefault(name, set()).add(place)
        for name, of_name in places.items():
            if len(of_name) > 1:
                clashes.setdefault((name, *sorted(of_name)), program)
    types = len({name for file in {file for all_of in files.values() for file in all_of} for name in types_of(file)})
    print(f"{types} types, {len(programs)} programs and libraries")
    assert types > 100 and len(programs) > 1, "these are not understood as they were written"
    return "\n".join(f"{name} is {' and '.join(places)}, both in {program}" for (name, *places), program in clashes.items())


sys.exit(main() or 0)
