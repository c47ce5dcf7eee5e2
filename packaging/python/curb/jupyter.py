"""An extension of Jupyter's server that answers what a kernel holds of GPUs; JupyterLab's status bar shows it.

Installing the wheel turns it on, in the environment that runs the server. GET /curb/kernels/ID answers
{"gpus": [{"name": …, "held": bytes, "cap": bytes or null}], "napping": bool, "refused": count}; no GPU is listed of a
kernel that is not under curb, or has not used CUDA yet.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web

import curb


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "curb.jupyter"}]


def _load_jupyter_server_extension(app: Any) -> None:
    route = url_path_join(app.web_app.settings["base_url"], "curb", "kernels", r"([\w-]+)")
    app.web_app.add_handlers(".*$", [(route, KernelHandler)])


NOTHING: dict[str, Any] = {"gpus": [], "napping": False, "refused": 0}


def held_by(pid: int) -> dict[str, Any]:
    """What a process holds, in short."""
    try:
        status = curb.status(pid)
    except curb.CurbError:
        return NOTHING
    used = [gpu for gpu in status["gpus"] if gpu["books"]]
    nap = (status["process"].get("status") or {}).get("nap")
    return {
        "gpus": [{"name": gpu["name"], "held": gpu["books"]["held"], "cap": gpu["books"]["cap"]} for gpu in used],
        "napping": bool(nap and nap["out"]),
        "refused": sum(sum(gpu["books"]["refused"].values()) for gpu in used),
    }


class KernelHandler(APIHandler):  # type: ignore[misc]
    """GET /curb/kernels/ID"""

    @web.authenticated  # type: ignore[untyped-decorator]
    async def get(self, kernel: str) -> None:
        if kernel not in self.kernel_manager:
            raise web.HTTPError(404, f"there is no kernel {kernel}")
        pid = getattr(self.kernel_manager.get_kernel(kernel).provisioner, "pid", None)
        # A kernel on another machine has no pid here.
        answer = NOTHING if pid is None else await asyncio.get_running_loop().run_in_executor(None, held_by, pid)
        self.finish(json.dumps(answer))
