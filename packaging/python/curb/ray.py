"""Tasks and actors of Ray whose part of a GPU is their cap: two actors of a quarter hold a quarter of its memory each.

    from curb.ray import on_gpu
    Actor.options(**on_gpu(0.25)).remote()
    @ray.remote(**on_gpu(0.5))

Ray schedules by `num_gpus` and does not enforce it. curb's wheel must be installed at the same path on every node.
"""

from __future__ import annotations

from decimal import ROUND_DOWN, Decimal
from typing import Any

import curb

__all__ = ["on_gpu"]


def on_gpu(part: float, cap: str | None = None, runtime_env: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Options for a task or actor: `num_gpus`, and a runtime_env that starts its worker under curb.

    `part`: num_gpus. Below 1 it becomes the cap, rounded down to 0.01 %; of 1 and more there is none, unless `cap` names one
    ("6GiB").
    `runtime_env`: another one, which is kept; its own CURB_CAP and LD_PRELOAD stay, LD_PRELOAD behind curb's.
    `options`: as of curb.environment. Raises CurbError if one is wrong.
    """
    if part <= 0:
        raise ValueError(f"num_gpus={part}: what uses no GPU needs no cap")
    if cap is None and part < 1:
        # In decimals: 0.29 is a little less than 29 % in binary.
        cap = f"{(100 * Decimal(str(part))).quantize(Decimal('0.01'), ROUND_DOWN).normalize():f}%"
    own = curb.environment(cap, **options)
    merged = dict(runtime_env or {})
    theirs = dict(merged.get("env_vars") or {})
    if theirs.get("LD_PRELOAD"):
        own["LD_PRELOAD"] += ":" + theirs.pop("LD_PRELOAD")
    merged["env_vars"] = {**own, **theirs}
    return {"num_gpus": part, "runtime_env": merged}
