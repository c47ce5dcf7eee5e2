#!/usr/bin/env python3
"""Holds docs/ARCHITECTURE.md against the sources: architecture_check.py

Which layer uses which others, and which libraries, is what the #include lines say. The tables of files name every file
of shim/ and cli/, and none that is not there. The paths that it and CONTRIBUTING.md name are there, and what the links of
all documents lead to, headings included.
"""

import re
import sys
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs/ARCHITECTURE.md").read_text()
# Libraries by the folder of their headers; other folders are the system's.
LIBRARIES = {"nlohmann": "nlohmann/json", "spdlog": "spdlog", "CLI": "CLI11"}


def in_code(text):
    return re.findall(r"`([^`\n]+)`", text)


def table(heading):
    """The rows under this first heading, each a list of its cells."""
    found = re.search(rf"^\| {re.escape(heading)} \|.*\n\|[ -|]*\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    if not found:
        sys.exit(f"architecture_check: docs/ARCHITECTURE.md has no table that begins with {heading}")
    return [line.split("|")[1:] for line in found[1].splitlines()]


def sources(folder):
    return [path for path in (ROOT / folder).rglob("*") if path.suffix in {".cpp", ".hpp", ".h", ".def", ".in"}]


def layers():
    drawn = {in_code(name)[0].rstrip("/"): set(in_code(uses)) for name, uses, *_ in table("layer")}
    by_depth = sorted(drawn, key=len, reverse=True)  # shim/abi before shim

    def layer_of(path):
        return next((one for one in by_depth if path.is_relative_to(ROOT / one)), None)

    public = [*(ROOT / one / "include" for one in drawn), ROOT / "shim/abi"]
    for layer, uses in drawn.items():
        used = set()
        for path in sources(layer):
            if layer_of(path) != layer:
                continue
            for mark, name in re.findall(r'^\s*#\s*include\s*(["<])([^">]+)', path.read_text(), re.MULTILINE):
                if mark == "<":
                    used |= {LIBRARIES[folder] for folder in LIBRARIES if name.startswith(folder + "/")}
                else:
                    places = [path.parent, ROOT / layer, *(one for one in (ROOT / layer).rglob("*") if one.is_dir()), *public]
                    used.add(next((layer_of(place / name) for place in places if (place / name).exists()), name))
        if used - {layer} != uses:
            yield f"{layer}/ uses {sorted(used - {layer})}; docs/ARCHITECTURE.md says {sorted(uses)}"


def files(folder):
    named = [name for row in table(f"in `{folder}/`") for name in in_code(row[0])]
    there = {str(path.relative_to(ROOT / folder)) for path in sources(folder)}

    def names(name, file):
        if "/" not in name and "/" in file:
            return False
        return file.startswith(name) if name.endswith("/") else fnmatch(file, name) or fnmatch(file, name + ".?pp")

    yield from (f"{folder}/{name}, in docs/ARCHITECTURE.md, is not there" for name in named if not any(names(name, file) for file in there))
    yield from (f"docs/ARCHITECTURE.md does not name {folder}/{file}" for file in sorted(there) if not any(names(name, file) for name in named))


def paths():
    for document in ("docs/ARCHITECTURE.md", "CONTRIBUTING.md"):
        for path in (name.split()[0] for name in in_code((ROOT / document).read_text()) if "/" in name):
            folder, _, rest = re.sub(r"\b[A-Z]{4,}\b", "*", path).partition("/")  # NAME.cpp
            if not folder or folder == "build" or not (ROOT / folder).is_dir():
                continue
            spellings = (f"{rest}", f"{rest}.*", f"include/{folder}/{rest}")
            if rest and not any(next((ROOT / folder).glob(one), None) for one in spellings):
                yield f"{document} names {path}, which is not there"


def anchors(text):
    """What #… may name in a document: its headings, as GitHub spells them."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in re.findall(r"^#+ (.*)", outside, re.MULTILINE)}


def links():
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", document.read_text()):
            target = document.parent / link if link else document
            if ":" in link:
                continue
            if not target.exists():
                yield f"{document.relative_to(ROOT)} links to {link}, which is not there"
            elif anchor and anchor not in anchors(target.read_text()):
                yield f"{document.relative_to(ROOT)} links to {link}#{anchor}, and there is no such heading"


faults = [*layers(), *files("shim"), *files("cli"), *paths(), *links()]
sys.exit("\n".join(faults) or 0)
