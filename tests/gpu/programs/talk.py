"""How a program under test talks to the test: events as JSON lines on stdout, commands as lines on stdin."""

from __future__ import annotations

import json
import sys
from typing import Any


def say(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def wait() -> str:
    """Returns the next command. Sleeps in read(), as an idle notebook does. The end of the test ends the program."""
    line = sys.stdin.readline()
    if not line:
        sys.exit("the test has gone")
    return line.strip()


def kind(error: Exception) -> str:
    """`torch.OutOfMemoryError`: the error's class and the package that defines it."""
    return f"{type(error).__module__.split('.')[0]}.{type(error).__name__}"
