"""Writes the figures: a table for the terminal, a short page in Markdown, and compressed JSON under raw/."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_tests import Device, describe, markdown_table, newest, write_raw
from measures import TWO_PROCESSES, Group, Row
from pairs import Figure, Spread
from running import NO_TIME, Result
from subjects import Subject

DRIVERS = {
    "noop": "the no-op driver, on which only the subject itself takes time",
    "sim": "the simulated driver",
    "gpu": "the real driver",
}
_HEAD = ("what", "subject", "against", "there", "here", "ratio (quartiles)", "added", "pairs", "target", "met")


def machine(device: Device | None, library: Path) -> dict[str, str]:
    here = {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f}",
        "libc": " ".join(platform.libc_ver()),
    }
    return describe(device, library) | here


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def time_text(ns: float) -> str:
    for limit, unit in ((1e3, "ns"), (1e6, "us"), (1e9, "ms")):
        if abs(ns) < limit:
            scaled = ns / limit * 1e3
            return f"{scaled:,.{0 if abs(scaled) >= 100 else 1 if abs(scaled) >= 10 else 2}f} {unit}"
    return f"{ns / 1e9:,.2f} s"


def _figure_text(result: Result, spread: Spread | None) -> str:
    if spread is None:
        return ""
    if not result.group.rates:
        return time_text(spread.median)
    rate = 1e9 / spread.median
    return f"{rate:,.{0 if rate >= 1000 else 1}f}/s"


def _ratio_text(ratio: Spread | None) -> str:
    if ratio is None:
        return ""
    if ratio.median < 0.1:
        return f"{ratio.median:.2g} ({ratio.low:.2g} to {ratio.high:.2g})"
    digits = 1 if ratio.median >= 10 else 2 if ratio.median >= 2 else 3
    return f"{ratio.median:,.{digits}f} ({ratio.low:,.{digits}f} to {ratio.high:,.{digits}f})"


def _target(result: Result) -> str:
    target = result.row.target
    return target.text if target and result.driver in target.drivers else ""


def cells(result: Result) -> list[str]:
    row, figure = result.row, result.figure
    against = row.against or "" if result.subject == result.against else result.against
    lane = row.lane if result.subject == result.against else result.subject
    met = {None: "", True: "yes", False: "no"}[result.met]
    target = _target(result)
    if figure is None:
        return [row.name, lane, against, "", "—", "", "", "", target, ""]
    added = "" if figure.added_ns is None or result.group.rates else time_text(figure.added_ns.median)
    return [
        row.name, lane, against, _figure_text(result, figure.base_ns), _figure_text(result, figure.ns),
        _ratio_text(figure.ratio), added, str(figure.pairs), target, met,
    ]  # fmt: skip


def _by_driver(results: Sequence[Result]) -> Iterator[tuple[str, list[Result]]]:
    for driver, says in DRIVERS.items():
        if some := [result for result in results if result.driver == driver]:
            yield says, some


def _remarks(results: Sequence[Result]) -> list[str]:
    """Returns each remark once, with its rows."""
    rows: dict[str, list[str]] = {}
    for result in results:
        for text in [result.why] if result.why else result.notes:
            rows.setdefault(f"{result.subject}: {text}", []).append(result.row.name)
    return [f"{text} ({'; '.join(dict.fromkeys(names))})" for text, names in rows.items()]


def table(results: Sequence[Result]) -> str:
    """Returns the table for the terminal."""
    blocks = []
    for says, some in _by_driver(results):
        rows = [list(_HEAD), *(cells(result) for result in some)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        blocks.append("\n".join([f"On {says}:", *lines, *_remarks(some)]))
    return "\n\n".join(blocks)


def page(results: Sequence[Result], about: dict[str, str], subjects: Sequence[Subject], raw: Path) -> str:
    """Returns the page: the rows with a target, or all if none has one. A row also has the ratios of its other lanes,
    and that of a program those to another process."""
    lines = [
        f"# The cost of a cap: {about['machine']}, {about['date']}",
        "",
        "By `scripts/bench`: [the method](../PERFORMANCE.md#how-it-is-measured), [the columns](README.md).",
        "",
        ", ".join(f"{name} {value}" for name, value in about.items() if name not in ("machine", "date")) + ".",
        "",
        *(f"- {subject.name}: {subject.says}" for subject in subjects),
        "",
        f"All rows, samples and remarks (`xz -dc FILE`): [{raw.name}](raw/{raw.name}).",
    ]
    for says, some in _by_driver(results):
        shown = [result for result in some if _target(result)] or some
        rows = [[*cells(result), _others(result, some)] for result in shown]
        lines += ["", f"## On {says}", "", *markdown_table([(*_HEAD, "other ratios"), *rows])]
    return "\n".join(lines) + "\n"


def _others(result: Result, some: Sequence[Result]) -> str:
    def name(one: Result) -> str:
        return one.row.name.removesuffix(TWO_PROCESSES)

    def lane(one: Result) -> str:
        return cells(one)[1] + one.row.name[len(name(one)) :]

    beside = [one for one in some if name(one) == name(result) and not _target(one) and one is not result]
    ratios = [(lane(one), one.figure.ratio) for one in beside if one.figure and one.figure.ratio]
    return ", ".join(f"{lane} {_ratio_text(ratio).partition(' ')[0]}" for lane, ratio in ratios)


def write(results: Sequence[Result], about: dict[str, str], subjects: Sequence[Subject], out: Path) -> list[Path]:
    slug = re.sub(r"[^a-z0-9]+", "-", about["machine"].lower()).strip("-")
    stem = f"bench-{about['date']}-{slug}"
    everything = {
        "machine": about,
        "subjects": {subject.name: subject.says for subject in subjects},
        "rows": [_record(result) for result in results],
    }
    raw = write_raw(out, f"{stem}.json", json.dumps(everything, indent=1) + "\n")
    (out / f"{stem}.md").write_text(page(results, about, subjects, raw))
    return [out / f"{stem}.md", raw]


def read(
    folder: Path, groups: Sequence[Group], again: set[str], casts: int
) -> tuple[dict[str, str], list[str], list[Result]] | None:
    """Returns the machine, the subjects and the results of the newest run in the folder, without the groups named in `again`
    that were not measured in all their casts. None: there is no run."""
    content = newest(folder, "bench")
    if content is None:
        return None
    rows = {(group.name, driver, row.name, row.lane): (group, row) for group in groups for driver in group.drivers for row in group.rows}
    by_group: dict[tuple[str, str], list[Result]] = {}
    for record in content["rows"]:
        if found := rows.get((record["group"], record["driver"], record["name"], record["lane"])):
            by_group.setdefault((record["group"], record["driver"]), []).append(_result(record, *found))
    kept = [some for (name, _), some in by_group.items() if name not in again or _is_whole(some, casts)]
    return content["machine"], list(content["subjects"]), [result for some in kept for result in some]


def _is_whole(results: Sequence[Result], casts: int) -> bool:
    wanted = casts if results[0].group.recast else 1
    return max(len(result.casts) for result in results) >= wanted and all(result.why != NO_TIME for result in results)


def _result(record: dict[str, Any], group: Group, row: Row) -> Result:
    spreads = {name: Spread(**record[name]) if record.get(name) else None for name in ("ns", "base_ns", "ratio", "added_ns")}
    figure = Figure(pairs=record["pairs"], **spreads) if spreads["ns"] else None
    return Result(
        record["driver"], group, row, record["subject"], record["against"], figure, record["cannot"] or "",
        tuple(record["notes"]), tuple(record["casts"]), record["lost"],
    )  # fmt: skip


def _record(result: Result) -> dict[str, Any]:
    return {
        "driver": result.driver,
        "group": result.group.name,
        "name": result.row.name,
        "subject": result.subject,
        "lane": result.row.lane,
        "against": result.against,
        "operation": result.group.operation,
        "rates": result.group.rates,
        **_rounded(asdict(result.figure) if result.figure else {}),
        "casts": _rounded(list(result.casts)),
        "target": _target(result) or None,
        "met": result.met,
        "cannot": result.why or None,
        "notes": list(result.notes),
        "lost": result.lost,
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
