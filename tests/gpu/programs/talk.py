"""The program's side of a test: prints events as JSON lines on stdout, and reads commands as lines from stdin."""

from __future__ import annotations

import json
import sys
from typing import Any


def say(event: str, **fields: Any) -> None:
    """Prints an event."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def wait() -> str:
    """Returns the next command. Sleeps in read(), as an idle notebook does. Exits when the test closes stdin."""
    line = sys.stdin.readline()
    if not line:
        sys.exit("the test closed stdin")
    return line.strip()


def kind(error: Exception) -> str:
    """Returns the package and the class of an error, as `torch.OutOfMemoryError`."""
    return f"{type(error).__module__.split('.')[0]}.{type(error).__name__}"
