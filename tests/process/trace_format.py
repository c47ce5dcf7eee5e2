"""Whether a trace is what Chrome and Perfetto take: trace_format.py FILE

The rules are those of the Trace Event Format in its array form: a JSON array, of which the closing bracket may be left
out, and of each event the members that its phase asks for.
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
    if len(names) != len(set(names)):
        raise ValueError(f"a member twice in {names}")
    return dict(pairs)


def read(text):
    if not text.startswith("[\n") or not text.endswith(",\n"):
        sys.exit("an array has no '[' at its beginning, or no ',' behind its last event")
    return json.loads(text[:-2] + "]", parse_constant=refuse_constant, object_pairs_hook=refuse_twice)


def check(event):
    phase = event.get("ph")
    if phase not in MORE:
        sys.exit(f"no such phase: {event}")
    members = ALWAYS | MORE[phase]
    for name, kind in members.items():
        if not isinstance(event.get(name), kind) or isinstance(event.get(name), bool):
            sys.exit(f"{name} is missing or of another type: {event}")
    if extra := event.keys() - members.keys() - {"dur"}:
        sys.exit(f"members that nobody knows: {extra} in {event}")
    if event["ts"] < 0 or event.get("dur", 0) < 0:
        sys.exit(f"before the beginning: {event}")
    if phase == "i" and event["s"] not in ("g", "p", "t"):
        sys.exit(f"no such scope: {event}")
    if phase == "C" and not all(isinstance(value, int) for value in event["args"].values()):
        sys.exit(f"a counter is a number: {event}")


def main():
    with open(sys.argv[1], encoding="utf-8", newline="") as file:
        events = read(file.read())
    for event in events:
        check(event)
    last = {}
    for event in events:
        if event["ph"] != "C":
            continue
        ns = round(event["ts"] * 1000)  # of microseconds with three decimals, which doubles hold only nearly
        if ns - last.get(event["name"], -1_000_000) < 1_000_000:
            sys.exit(f"counters more often than once a millisecond: {event}")
        last[event["name"]] = ns
    if not {"M", "i", "C"} <= {event["ph"] for event in events}:
        sys.exit("a kind of event is missing")


main()
