#!/usr/bin/env python3
"""Compares the messages of docs/TROUBLESHOOTING.md with the sources, both ways: troubleshooting_test.py

A message is a code span in the first column of a table whose first heading is "message"; `…` stands for what differs. Each of
its parts must be in a text of the sources. In the other direction, the page must have a part of each text in SAYING, which
has messages that users look up. Texts of few words are parts of longer messages.
"""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "TROUBLESHOOTING.md"
SOURCES = ["shim", "control", "config", "policy", "cli", "integrations", "packaging", "pyproject.toml"]
SAYING = [
    "shim/**/*.cpp",
    "control/client/*.cpp",
    "control/messages/messages.cpp",
    "control/messages/release_report.cpp",
    "control/runtime_dir.cpp",
    "control/suspended.cpp",
    "config/ceiling.cpp",
    "config/file.cpp",
    "policy/flags.cpp",
    "policy/handed_in.cpp",
    "cli/machine/*.cpp",
    "cli/suspend/gate.cpp",
    "cli/suspend/guards.cpp",
    "cli/trace/job.cpp",
    "cli/trace/reader.cpp",
]
NOT_MESSAGES = [
    r"\.pushsection|\.balign|\.size|endbr64|bti c|%rip|cbz|curb_number",  # assembly
    r"^_Z",  # names of functions
    r"^CUDA_MPS",  # names of variables
    r"^(All p|P)rocess",  # help
    r"^curb run --wait|^make room there|^raise the cap: curb cap $|next time curb run|^or have the program|, or (free|have) ",  # remedies
    r"^see whether nvidia-smi|^; see whether|^(set|correct or unset) CURB_LIBRARY|^build it|^\); run curb where|^try as root|^that takes 570",
    r"^nvidia-smi lists those|^suspend none of such|^(; )?--force if|^make room first|^give what it held|^: it is stopped|^\. ipcs -m lists",
    r"^\. The program sees CUDA_ERROR_OUT",
    r"^curb resume \{\}|^; curb res?|^(all that is left|there is nothing)|^bring that|^curb release gives",
    r"another process of its job|the end of a graph capture|soft limit of its cgroup|the driver moves it for a nap",  # who asks
    r"^(its first line|it is (longer|a second)|a size in it|no process has a GPU|an object in it|it is n(ot JSON|ested)|what is held is right|and what was held)",  # of a broken file
    r"^ in it; install|NCCL is loaded|^\); curb writes|^; it reads",  # ends of messages that the page has
    r"^Python's lock|^write either|^ PID, or --all",  # mistakes in a command line
]
FOREIGN = {  # of the loader and the C++ runtime
    "ERROR: ld.so: object",
    "version 'GLIBC_2.33' not found (required by ",
    "/libcurb.so' from LD_PRELOAD cannot be preloaded",
    "ASan runtime does not come first in initial library list",
    "terminate called without an active exception",
}
FEWEST_WORDS = 5  # of a text that is a message
COMMON_WORDS = 4  # one after the other, by which a part of a message is known


def words(text):
    return re.findall(r"[\w%-][\w'%-]*", text)


def texts_of(path):
    """Returns the strings of a source, with adjacent ones joined."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix in (".cpp", ".hpp", ".def"):
        text = re.sub(r"^\s*(?://|#include).*$|\s//[^\"\n]*$", "", text, flags=re.MULTILINE)
    one = r'"(?:[^"\\\n]|\\.)*"'
    out = []
    for found in re.finditer(rf"{one}(?:\s*{one})*", text):
        joined = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', found[0]))
        out.append(joined.replace('\\"', '"').replace("\\n", "\n").replace("\\'", "'"))
    return out


def sources():
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")) or [ROOT / folder]:
            if path.suffix in (".cpp", ".hpp", ".def", ".py", ".lua", ".toml"):
                yield path


def messages():
    """Yields the messages of the page."""
    is_table = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = line.split(" | ")
        if line.startswith("| message |"):
            is_table = True
        elif not line.startswith("|"):
            is_table = False
        elif is_table:
            yield from re.findall(r"`([^`]+)`", cells[0])


def parts(message):
    return message.split("…")


class Messages(unittest.TestCase):
    maxDiff = None

    def test_each_message_of_the_page_is_in_the_sources(self):
        known = [*FOREIGN]
        for path in sources():
            if path.suffix not in (".cpp", ".hpp", ".def"):
                text = path.read_text(encoding="utf-8", errors="replace")
                known.append(re.sub(r"[\"']\s*\n\s*f?[\"']", "", text))  # adjacent strings
            else:
                known += texts_of(path)
        known = " | ".join(" ".join(words(text)) for text in known)
        lost = [part for message in messages() for part in parts(message) if len(words(part)) > COMMON_WORDS and " ".join(words(part)) not in known]
        self.assertEqual(lost, [])
        self.assertGreater(len([*messages()]), 150)

    def test_each_message_of_the_sources_is_on_the_page(self):
        page = " … ".join(messages()) + " ".join(re.findall(r"`[^`]+`", PAGE.read_text(encoding="utf-8")))
        page = f" {' '.join(words(page))} "
        lost = []
        for path in sorted({path for pattern in SAYING for path in ROOT.glob(pattern)}):
            for text in texts_of(path):
                said = words(re.sub(r"\{[^}]*\}", " ", text))
                if len([one for one in said if re.search(r"[A-Za-z]{2}", one)]) < FEWEST_WORDS or any(re.search(one, text) for one in NOT_MESSAGES):
                    continue
                runs = (said[at : at + COMMON_WORDS] for at in range(len(said) - COMMON_WORDS + 1))
                if not any(f" {' '.join(run)} " in page for run in runs):
                    lost.append((str(path.relative_to(ROOT)), text))
        self.assertEqual(lost, [])


if __name__ == "__main__":
    unittest.main()
