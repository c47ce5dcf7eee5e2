"""Checks that a trace is what Chrome and Perfetto read: trace_format.py FILE

The Trace Event Format in its array form: a JSON array whose closing bracket may be left out, and the members that each
phase of an event asks for. Counters come at most once a millisecond.
"""

import json
import sys

NUMBER = (int, float)
ALWAYS = {"ph": str, "name": str, "ts": NUMBER, "pid": int, "args": dict}
MORE = {  # by phase
    "M": {"tid": int},
    "i": {"tid": int, "s": str},
    "X": {"tid": int, "dur": NUMBER},
    "C": {},
}


def refuse_constant(name):
    raise ValueError(f"{name} is not JSON")


def refuse_twice(pairs):
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names)), f"a member twice in {names}"
    return dict(pairs)


def check(event):
    members = ALWAYS | MORE[event["ph"]]
    for name, kind in members.items():
        assert isinstance(event.get(name), kind) and not isinstance(event[name], bool), (name, event)
    assert event.keys() <= members.keys() | {"dur"}, event
    assert event["ts"] >= 0 and event.get("dur", 0) >= 0, event
    assert event.get("s", "t") in ("g", "p", "t"), event
    assert event["ph"] != "C" or all(isinstance(value, int) for value in event["args"].values()), event


with open(sys.argv[1], encoding="utf-8", newline="") as file:
    text = file.read()
assert text.startswith("[\n") and text.endswith(",\n"), "not an array without its closing bracket"
last = {}
phases = set()
for one in json.loads(text[:-2] + "]", parse_constant=refuse_constant, object_pairs_hook=refuse_twice):
    check(one)
    phases.add(one["ph"])
    if one["ph"] == "C":
        ns = round(one["ts"] * 1000)  # microseconds with three decimals, which a double does not hold exactly
        assert ns - last.get(one["name"], -1_000_000) >= 1_000_000, f"sooner than a millisecond: {one}"
        last[one["name"]] = ns
assert {"M", "i", "C"} <= phases, phases
