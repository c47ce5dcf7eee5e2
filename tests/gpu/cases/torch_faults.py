"""PyTorch while calls of the driver fail under it, with curb and without: the same exceptions, and it goes on."""

from __future__ import annotations

from cases import driver_faults
from lab import Lab
from row import Row
from session import Event
from together import BARE, ROOM, Outcome, Outcomes, Run, same_as_bare


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
    one_by_one = {one.run.name: _one_by_one(one) for one in (bare, *outcomes.values())}
    same_as_bare(row, bare, outcomes)
    tried = [event for event in bare.said if event["event"] == "failed"]
    row.expect(bool(tried), f"without curb it says nothing: {bare.how}")
    seen = sorted({event["outcome"].split(":")[0] for event in tried})
    stuck = [f"{event['call']} with {event['code']}" for event in tried if not event["goes_on"]]
    for name, event in one_by_one.items():
        row.expect(event["faults"] > 0, f"{name}: no call failed when each was to")
        new = sorted(set(event["stuck"]) - set(one_by_one[BARE]["stuck"]))
        row.expect(not new, f"{name}: does not go on after {', '.join(new)}")
    row.goes_on = not row.wrong
    row.details |= {"failed": tried, "one by one": one_by_one}
    counts = ", ".join(f"{event['faults']} faults in {event['calls']} calls {name}" for name, event in one_by_one.items())
    row.add_note(f"{len(tried)} calls by name: outcomes as without curb ({', '.join(seen)}); one by one: {counts}")
    if stuck:
        row.add_note(f"does not go on, without curb either: {', '.join(stuck)}")
    if bare.status != 0:
        row.add_note(f"without curb it {bare.how.splitlines()[0]}")


def _one_by_one(outcome: Outcome) -> Event:
    """Taken out of what it said: under curb other calls are counted, those that curb makes too."""
    found = [event for event in outcome.said if event["event"] == "one by one"]
    outcome.said = [event for event in outcome.said if event not in found]
    return found[0] if found else {"calls": 0, "faults": 0, "stuck": []}
