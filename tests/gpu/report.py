"""Writes the results: a table for the terminal, a short page in Markdown, and compressed JSON under raw/."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from row import CAP_MIB, Row

try:
    import lzma
except ImportError:  # this Python was built without liblzma: raw files are not compressed
    lzma = None

_HEAD = ("case", "verdict", "peak MiB", "error at the cap", "goes on", "SIGUSR1 gave back", "in", "notes")
_EXPLANATION = f"By `scripts/gpu-test`, under a cap of {CAP_MIB:,} MiB unless [the columns' legend](README.md) says otherwise.\n"


@dataclass
class Result:
    machine: dict[str, str]
    rows: list[Row]


def table(rows: list[Row]) -> str:
    """Returns the table for the terminal, with the notes below it."""
    cells = [_HEAD[:-1], *(_cells(row)[:-1] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    lines.insert(1, "-" * max(map(len, lines)))
    lines += [f"{row.name}: {row.note}" for row in rows if row.note]
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in ("pass", "FAIL", "info", "skipped")}
    return "\n".join([*lines, ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)])


def write(result: Result, folder: Path, kind: str) -> list[Path]:
    content = {"machine": result.machine, "rows": [row.json() for row in result.rows]}
    written = write_files(result.machine, folder, kind, json.dumps(content, indent=1), _markdown(result))
    for row in result.rows:
        for name, text in row.figures.items():
            file = _figure_file(result.machine, name)
            written.append(write_raw(folder, file, text) if file.endswith(".html") else folder / file)
            if not file.endswith(".html"):
                written[-1].write_text(text)
    return written


def newest(folder: Path, kind: str) -> dict[str, Any] | None:
    """Returns the content of the newest JSON of that kind in the folder. None: there is none."""
    found = sorted((folder / "raw").glob(f"{kind}-[0-9]*.json*"))
    return json.loads(_read_raw(found[-1])) if found else None


def read(folder: Path, kind: str) -> Result | None:
    """Returns the newest result of that kind in the folder, with its figures. None: there is none."""
    content = newest(folder, kind)
    if content is None:
        return None
    machine, rows = content["machine"], []
    for fields in content["rows"]:
        figures = {name: _figure_text(folder, _figure_file(machine, name)) for name in fields.pop("figures", [])}
        rows.append(Row(**fields, figures=figures))
    return Result(machine, rows)


def write_files(machine: dict[str, str], folder: Path, kind: str, as_json: str, as_markdown: str) -> list[Path]:
    """Writes both files, with the date and the GPU in their names."""
    base = _base(machine, kind)
    raw = write_raw(folder, f"{base}.json", as_json + "\n")
    (folder / f"{base}.md").write_text(as_markdown)
    return [folder / f"{base}.md", raw]


def write_raw(folder: Path, name: str, text: str) -> Path:
    """Writes FOLDER/raw/NAME.xz. `xz -dc` shows it."""
    path = _raw(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME) if lzma else text.encode())
    return path


def _raw(folder: Path, name: str) -> Path:
    return folder / "raw" / (f"{name}.xz" if lzma else name)


def _read_raw(path: Path) -> str:
    data = path.read_bytes()
    return (lzma.decompress(data) if lzma and path.suffix == ".xz" else data).decode()


def _base(machine: dict[str, str], kind: str) -> str:
    gpu = re.sub(r"[^a-z0-9]+", "-", machine["gpu"].lower()).strip("-")
    return f"{kind}-{machine['date']}-{gpu}"


def _figure_file(machine: dict[str, str], name: str) -> str:
    stem, dot, ending = name.partition(".")
    return f"{_base(machine, stem)}.{ending if dot else 'svg'}"


def _figure_text(folder: Path, file: str) -> str:
    return _read_raw(_raw(folder, file)) if file.endswith(".html") else (folder / file).read_text()


def _figure_link(machine: dict[str, str], case: str, name: str) -> str:
    file = _figure_file(machine, name)
    return f"[{case}]({_raw(Path(), file)})" if file.endswith(".html") else f"![{case}]({file})"


def markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first row is the head."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]


def versions(machine: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in machine.items() if name not in ("gpu", "date")) + "."


def _markdown(result: Result) -> str:
    machine = result.machine
    lines = [f"# {machine['gpu']}, {machine['date']}", "", _EXPLANATION]
    lines += [versions(machine), ""]
    lines += markdown_table([_HEAD, *(_cells(row) for row in result.rows)])
    failed = [row for row in result.rows if row.wrong]
    if failed:
        lines += ["", "## What is wrong", ""]
        lines += [f"* {row.name}: {_first_line(wrong)}" for row in failed for wrong in row.wrong]
    for row in result.rows:
        figures = [_figure_link(machine, row.name, name) for name in row.figures]
        # The output of programs is long, so only the JSON has it.
        section = [] if row.section[:1] == ["```"] else row.section
        if section or figures:
            lines += ["", f"## {row.name}", "", *figures, *([""] if section and figures else []), *section]
    lines += ["", _sampling(result.rows), ""]
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    def number(value: float | None, unit: str) -> str:
        return "" if value is None else f"{value:,.0f}{unit}"

    goes_on = {True: "yes", False: "no", None: ""}[row.goes_on]
    in_ms = "" if row.released_ms is None else f"{row.released_ms:.1f} ms"
    released = "nothing" if row.released_mib == 0 else number(row.released_mib, " MiB")
    return (row.name, row.verdict, number(row.peak_mib, ""), row.error, goes_on, released, in_ms, row.note)


def _sampling(rows: list[Row]) -> str:
    watched = [row.sampling for row in rows if row.sampling.get("samples")]
    if not watched:
        return "No process was watched through NVML."
    samples = sum(s["samples"] for s in watched)
    late = sum(s["later_than_5_ms"] for s in watched)
    return (
        f"NVML: {samples:,} samples, {min(s['median_ms'] for s in watched)} to {max(s['median_ms'] for s in watched)} ms apart "
        f"(medians of the cases). {late:,} came more than 5 ms after the one before; the longest gap was "
        f"{max(s['worst_ms'] for s in watched)} ms."
    )


def _first_line(text: str) -> str:
    return text.splitlines()[0]
