"""Parses `curb COMMAND --help`, for tests."""

import re
import subprocess
from dataclasses import dataclass, field

HEADINGS = ("Arguments", "Options", "Commands")


@dataclass
class Command:
    words: list  # ["curb", "policy", "check"]
    text: str  # all of it
    usage: str = ""
    arguments: list = field(default_factory=list)  # rows: (left, right)
    options: list = field(default_factory=list)
    commands: list = field(default_factory=list)  # Command
    notes: list = field(default_factory=list)  # below these: ("text", words), ("rows", rows), ("heading", words)

    @property
    def name(self):
        return " ".join(self.words)

    @property
    def examples(self):
        """Returns the rows below "Examples:"."""
        for (kind, what), following in zip(self.notes, self.notes[1:]):
            if kind == "heading" and what == "Examples":
                return following[1]
        return []

    def all(self):
        yield self
        for command in self.commands:
            yield from command.all()

    def spellings(self):
        """Returns each spelling of an option, with its value: {"-h": "", "--cap": "SIZE", "--watch": "[SECONDS]"}."""
        out = {}
        for left, _ in self.options:
            names, _, value = left.removesuffix("...").partition(" ")
            out.update({name: value for name in names.split(",")})
        return out


def rows_of(lines):
    """Splits indented lines into (first column, second column). A line without a first column continues the second."""
    rows = []
    for line in lines:
        begins = re.match(r"  (\S.*?)(?:  +(\S.*))?$", line)
        if begins:
            rows.append((begins[1], begins[2] or ""))
        else:
            left, right = rows[-1]
            rows[-1] = (left, f"{right} {line.strip()}".strip())
    return rows


def parsed(words, text, ask):
    command = Command(words, text)
    blocks = [block.split("\n") for block in re.split(r"\n{2,}", text.strip("\n"))]
    blocks.pop(0)  # what it does
    command.usage = " ".join(line.strip() for line in blocks.pop(0)).removeprefix("Usage: ")
    below = False
    for lines in blocks:
        headed = len(lines) > 1 and lines[0].endswith(":") and lines[1].startswith("  ")
        heading = lines[0].removesuffix(":") if headed else None
        if not below and heading in HEADINGS:
            rows = rows_of(lines[1:])
            if heading == "Arguments":
                command.arguments = rows
            elif heading == "Options":
                command.options = rows
            else:
                command.commands = [walk(ask, [*words, name]) for name, _ in rows]
            continue
        below = True
        if heading:
            command.notes.append(("heading", heading))
            lines = lines[1:]
        kind = "rows" if lines[0].startswith(" ") else "text"
        command.notes.append((kind, rows_of(lines) if kind == "rows" else " ".join(lines)))
    return command


def walk(ask, words):
    return parsed(words, ask(words), ask)


def misuse(command, words):
    """Returns what is wrong with the words after a command, by its help; None if nothing is."""
    while command.commands and words[:1] not in (["--version"], ["--help"]):
        if not words:
            return f"{command.name} alone"
        name, words = words[0], words[1:]
        found = [one for one in command.commands if one.words[-1] == name]
        if not found:
            return f"there is no {command.name} {name}"
        command = found[0]
    spellings, arguments, rest = command.spellings(), 0, list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            arguments += 1
            continue
        name, equals, _ = word.partition("=")
        if name not in spellings:
            return f"{command.name} has no {name}"
        value = spellings[name]
        is_given = bool(rest) and not (value.startswith("[") and rest[0].startswith("-"))
        if value and not equals and is_given:
            rest.pop(0)
        elif value and not equals and not value.startswith("["):
            return f"{name} without a value"
    names = [left for left, _ in command.arguments]
    if arguments > len(names) and not any(name.endswith("...") for name in names):
        return f"{command.name} takes no such argument"
    return None


def commands_of(curb):
    """Returns `curb` with all its commands."""

    def ask(words):
        run = subprocess.run([curb, *words[1:], "--help"], check=True, stdout=subprocess.PIPE, text=True)
        return run.stdout

    return walk(ask, ["curb"])
