"""The subjects under which a lane can run: none (bare), curb with several policies, another preload, or NVIDIA's MPS with a
limit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_tests import COLUMNS, MpsDaemon, Preload, shell_environment

CAP = "64GiB"
_CACHE = {"max": "32GiB", "idle": "1h"}


@dataclass(frozen=True)
class Subject:
    name: str
    says: str
    library: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    policy: Mapping[str, Any] | None = None
    drivers: tuple[str, ...] = ("noop", "sim", "gpu")
    cannot: str = ""

    def preload(self, folder: Path, first: Path | None = None) -> dict[str, str]:
        """Returns the variables that run a program under it, with the preload `first` before it. Writes its policy into the
        folder."""
        env = dict(self.env)
        if libraries := [str(library) for library in (first, self.library) if library]:
            env["LD_PRELOAD"] = ":".join(libraries)
        if self.policy is not None:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "job.json"
            trace: dict[str, Any] = {"trace": {"file": str(folder / "trace.json")}} if self.name in (TRACE, STACKS) else {}
            if self.name == STACKS:
                trace["trace"]["stacks"] = "64MiB"
            path.write_text(json.dumps({"version": 1, **self.policy, **trace}, indent=2))
            env["CURB_POLICY"] = str(path)
        return env


BARE, CURB, CACHED, NAPS, TURNS, TRACE, STACKS, MPS, DIRECT = COLUMNS
"""DIRECT is not a subject, but a base of comparison: the driver's own functions, called in the subject's process."""


def own_subjects(library: Path) -> list[Subject]:
    capped = {"gpu": {"*": {"cap": CAP}}}
    cached = {"gpu": {"*": {"cap": CAP, "cache": _CACHE}}}
    naps = capped | {"suspend": {"idle": "1h"}}
    turns = capped | {"suspend": {"turn": "1m"}}
    return [
        Subject(BARE, "only the driver"),
        Subject(CURB, f"libcurb.so, cap {CAP}, no cache", library, policy=capped),
        Subject(CACHED, f"libcurb.so, cap {CAP}, a cache of {_CACHE['max']}", library, policy=cached),
        Subject(NAPS, f"libcurb.so, cap {CAP}, and naps, none of which comes", library, policy=naps),
        Subject(TURNS, f"libcurb.so, cap {CAP}, and turns, none of which ends", library, policy=turns),
        Subject(TRACE, f"libcurb.so, cap {CAP}, and a trace", library, policy=capped),
        Subject(STACKS, f"libcurb.so, cap {CAP}, and a trace with stacks from 64 MiB on", library, policy=capped),
    ]


def peer(text: str) -> Subject:
    """Makes a subject of NAME=/path/lib.so[,VAR=value...]. Raises ArgumentTypeError."""
    preload = Preload.parse(text)
    said = "".join(f", {name}={value}" for name, value in preload.env.items())
    return Subject(preload.name, f"{preload.library.name}{said}", preload.library, preload.env)


class Mps:
    """An MPS control daemon of the bench, with the cap as the memory limit of its clients."""

    def __init__(self, folder: Path, device_index: int) -> None:
        self._daemon = MpsDaemon(folder, device_index, shell_environment())

    def start(self) -> Subject:
        """Starts the daemon. Returns the subject. If MPS cannot run here, its `cannot` has the reason."""
        says = f"NVIDIA MPS, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT 0={CAP[:-2]}"
        if wrong := self._daemon.start():
            return Subject(MPS, says, drivers=("gpu",), cannot=wrong)
        env = self._daemon.client | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={CAP[:-2]}"}
        return Subject(MPS, says, env=env, drivers=("gpu",))

    def stop(self) -> None:
        self._daemon.stop()
