"""PyTorch while calls of the driver fail under it, with curb and without: the same exceptions, and it goes on."""

from __future__ import annotations

from cases import driver_faults
from lab import Lab
from row import Row
from together import BARE, ROOM, Outcomes, Run, same_as_bare


def plan(lab: Lab, name: str) -> list[Run]:
    lab.need("torch")
    folder = lab.folder_of(name)
    between = driver_faults.environment(lab, folder)
    argv = lab.python("matrix_faults.py")
    job = lab.job(name, ROOM)
    return [
        Run(BARE, argv, lab.environment(between), folder, expected_s=30),
        Run("capped", argv, lab.capped_environment(job, between), folder, expected_s=30, job=job),
    ]


def judge(row: Row, outcomes: Outcomes) -> None:
    bare = outcomes.pop(BARE)
    same_as_bare(row, bare, outcomes)
    tried = [event for event in bare.said if event["event"] == "failed"]
    row.expect(bool(tried), f"without curb it says nothing: {bare.how}")
    seen = sorted({event["outcome"].split(":")[0] for event in tried})
    stuck = [f"{event['call']} with {event['code']}" for event in tried if not event["goes_on"]]
    row.goes_on = not row.wrong
    row.details |= {"failed": tried}
    row.add_note(f"{len(tried)} calls made to fail: outcomes as without curb ({', '.join(seen)})")
    if stuck:
        row.add_note(f"does not go on, without curb either: {', '.join(stuck)}")
