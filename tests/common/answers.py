"""Compares what commands print with --json with one example of each answer, in tests/command/answers/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator

FOLDER = Path(__file__).resolve().parent.parent / "command" / "answers"


def differences(answer: Any, example: Any, path: str = "$") -> Iterator[str]:
    """Yields where the members or their types differ. In the example null stands for any value, and an empty list
    for any items; otherwise each item of a list needs one like it in the example."""
    if answer is None or example is None:
        return
    if type(answer) is not type(example) and not {type(answer), type(example)} <= {int, float}:
        yield f"{path}: {answer!r} where the example has {example!r}"
    elif isinstance(answer, dict):
        for key in sorted(answer.keys() ^ example.keys()):
            yield f"{path}.{key}: {'missing' if key in example else 'not in the example'}"
        for key in answer.keys() & example.keys():
            yield from differences(answer[key], example[key], f"{path}.{key}")
    elif isinstance(answer, list) and example:
        for at, item in enumerate(answer):
            tried = [list(differences(item, one, f"{path}[{at}]")) for one in example]
            yield from min(tried, key=len)


def faults(command: str, answer: Any) -> list[str]:
    """Returns how an answer of `curb COMMAND --json` differs from the example that is most like it."""
    examples = json.loads((FOLDER / f"{command}.json").read_text())
    return min((list(differences(answer, one)) for one in examples), key=len)


def merged(one: Any, other: Any) -> Any:
    """Returns an example that is like both; `one` if there is none."""
    if one is None:
        return other
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return {key: merged(value, other[key]) for key, value in one.items()}
    return shortened([*one, *other]) if isinstance(one, list) and isinstance(other, list) else one


def shortened(items: list[Any]) -> list[Any]:
    """Returns as few examples as possible, so that each item is like one of them."""
    kept: list[Any] = []
    for item in (merged(one, one) for one in items):
        for at, example in enumerate(kept):
            both = merged(example, item)
            if not any(differences(item, both)) and not any(differences(example, both)):
                kept[at] = both
                break
        else:
            kept.append(item)
    return kept


def text_of(value: Any, indent: int = 0, width: int = 118) -> str:
    """JSON that breaks lines only where they are too long."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= width or not isinstance(value, (dict, list)):
        return line
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        items = [f"{inner}{json.dumps(key)}: {text_of(one, indent + 2, width)}" for key, one in value.items()]
    else:
        items = [inner + text_of(one, indent + 2, width) for one in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return begin + "\n" + ",\n".join(items) + "\n" + " " * indent + end
