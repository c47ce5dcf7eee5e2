"""One program under test: starts it under curb or bare, exchanges events and commands with it, watches it, and ends it.

A program prints `{"event": …}` and then waits for a line on its stdin. So the test knows what the program is doing when it sends
a signal or measures. programs/talk.py is the program's side.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import ROOT
from measuring.nvml import Device
from measuring.watch import MIB, Watch, parent_of

Event = dict[str, Any]
_TAIL_LINES = 12
_STAMP = len("2026-11-21 16:31:00.123")


class Unavailable(RuntimeError):
    """The case cannot run here. The text says what is missing."""


class ProgramFailed(RuntimeError):
    """The program ended, or did not print the expected event in time. The text has the end of its stderr."""


def event_of(line: str | bytes) -> Event | None:
    """Returns the event in a line of a program's stdout. None: the line is a framework's own output."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) and "event" in said else None


def ending(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"


def end_all(leader: subprocess.Popen[Any]) -> None:
    """Kills a program that was started in a session of its own, its process group, and its descendants in other ones. Waits for
    its end."""
    for pid in _descendants(leader.pid) if leader.poll() is None else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()


def _descendants(root: int) -> list[int]:
    parents = {pid: parent_of(pid) for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())}
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


@dataclass(frozen=True)
class Entry:
    """One line of a log."""

    at: float
    """By time.monotonic(), cut to the millisecond."""
    message: str


class Log:
    """curb's log file of one program."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def messages(self) -> list[str]:
        """Returns its lines without the date, the pid and the level."""
        return [line.split(": ", 1)[-1] for line in self._lines()]

    def entries(self) -> list[Entry]:
        """Returns its lines with their times."""
        ahead = time.time() - time.monotonic()  # the log has the time of day
        found = []
        for line in self._lines():
            try:
                at = datetime.datetime.strptime(line[:_STAMP], "%Y-%m-%d %H:%M:%S.%f").timestamp() - ahead
            except ValueError:
                continue  # a further line of the message before
            found.append(Entry(at, line.split(": ", 1)[-1]))
        return found

    def wait_for(self, text: str, after: int, timeout_s: float) -> str | None:
        """Waits for a message that contains `text`, and returns it. Skips the first `after` messages. None: none in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for message in self.messages()[after:]:
                if text in message:
                    return message
            time.sleep(0.005)
        return None

    def _lines(self) -> list[str]:
        return self._path.read_text(errors="replace").splitlines() if self._path.exists() else []


@dataclass
class Job:
    """The folder of one run, with its policy and log."""

    folder: Path
    cap: str | None
    more: dict[str, Any] = field(default_factory=dict)
    """Further members of the policy. They replace those that text() writes."""
    growth: dict[str, str] | None = None

    @property
    def policy(self) -> Path:
        return self.folder / "job.json"

    @property
    def log_file(self) -> Path:
        return self.folder / "curb.log"

    @property
    def log(self) -> Log:
        return Log(self.log_file)

    def text(self) -> str:
        rule = {"cap": self.cap, "growth": self.growth}
        return json.dumps(
            {
                "version": 1,
                "gpu": {"*": {name: value for name, value in rule.items() if value is not None}},
                "log": {"level": "info", "file": str(self.log_file)},
                **self.more,
            },
            indent=2,
        )


class Program:
    """A process that prints events on stdout and reads commands from stdin. It leads a session of its own."""

    def __init__(self, argv: list[str], env: dict[str, str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._stderr = folder / "stderr.txt"
        self._events: queue.Queue[Event | None] = queue.Queue()
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                argv,
                env=env,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                errors="replace",
                bufsize=1,
                start_new_session=True,
            )
        self.pid = self._process.pid
        threading.Thread(target=self._read, daemon=True).start()

    def expect(self, event: str, timeout_s: float = 90) -> Event:
        """Waits for the next event and returns it. Raises Unavailable if the program says "unavailable", and ProgramFailed if it is
        another one, or none comes in time."""
        try:
            said = self._events.get(timeout=timeout_s)
        except queue.Empty:
            raise ProgramFailed(f"no event within {timeout_s:g} s, '{event}' expected{self.tail()}") from None
        if said is None:
            raise ProgramFailed(f"{self._ending()} before '{event}'{self.tail()}")
        if said["event"] == "unavailable":
            raise Unavailable(said["why"])
        if said["event"] != event:
            raise ProgramFailed(f"the event was {json.dumps(said)[:300]}, '{event}' expected{self.tail()}")
        return said

    def tell(self, command: str) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ProgramFailed(f"{self._ending()} before the command '{command}'{self.tail()}") from None

    def tail(self) -> str:
        """Returns the end of its stderr, for the text of a failure."""
        lines = self._stderr.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        # Results are read on other machines, so paths start at the repository.
        return "".join(f"\n    | {line[:300]}".replace(f"{ROOT}/", "") for line in lines)

    def _read(self) -> None:
        assert self._process.stdout
        with self._process.stdout as stdout:
            for line in stdout:
                if event := event_of(line):
                    self._events.put(event)
        self._events.put(None)

    def _ending(self) -> str:
        try:
            return f"ended with {ending(self._process.wait(5))}"
        except subprocess.TimeoutExpired:
            return "closed its stdout or stdin"


class Session(Program):
    """A program that NVML watches. Leaving the `with` block kills it."""

    def __init__(self, argv: list[str], env: dict[str, str], devices: Sequence[Device], folder: Path) -> None:
        used_before = devices[0].used()
        super().__init__(argv, env, folder)
        self.watch = Watch(devices, self.pid, used_before)

    def __enter__(self) -> Session:
        self.watch.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.watch.__exit__()
        end_all(self._process)

    def send(self, number: signal.Signals = signal.SIGUSR1) -> float:
        """Sends the signal, if the program still runs. Returns the moment."""
        now = time.monotonic()
        if self._process.poll() is None:
            os.kill(self.pid, number)
        return now

    def send_every(self, interval_s: float, most: int) -> list[float]:
        """Sends SIGUSR1 until the program prints an event or ends, at most so many times. Returns the moments."""
        sent: list[float] = []
        while self.quiet() and self.running() and len(sent) < most:
            sent.append(self.send())
            time.sleep(interval_s)
        return sent

    def held_mib(self) -> float:
        """Returns NVML's figure, once it no longer changes."""
        return round(self.watch.settle() / MIB, 1)

    def running(self) -> bool:
        return self._process.poll() is None

    def quiet(self) -> bool:
        """True if no event is unread."""
        return self._events.empty()

    def end(self) -> None:
        """Sends the command "end" and waits for exit status 0. Raises ProgramFailed."""
        self.tell("end")
        self.finish()

    def finish(self, timeout_s: float = 30) -> None:
        """Closes the program's stdin and waits for exit status 0. Raises ProgramFailed."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ProgramFailed(f"did not end within {timeout_s:g} s{self.tail()}") from None
        if self._process.returncode != 0:
            raise ProgramFailed(f"{self._ending()}{self.tail()}")
