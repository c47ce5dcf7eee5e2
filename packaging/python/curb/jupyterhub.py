"""A spawner of JupyterHub whose servers, and all kernels in them, run under curb. In jupyterhub_config.py:

    c.JupyterHub.spawner_class = "curb.jupyterhub.CurbSpawner"
    c.CurbMixin.cap = "6GiB"
    c.CurbMixin.nap = "10m"

For another spawner than LocalProcessSpawner: `class Spawner(CurbMixin, DockerSpawner): pass`, and
`c.JupyterHub.spawner_class = Spawner`. `cap` is of each kernel, `user_cap` of all kernels of a user together.
"""

from __future__ import annotations

from typing import Any

from jupyterhub.spawner import LocalProcessSpawner
from traitlets import Bool, Callable, Unicode, Union
from traitlets.config import Configurable

import curb

__all__ = ["CurbMixin", "CurbSpawner"]


def _option(text: str) -> Any:
    """A text, or a function of the spawner that returns it. `text`: the help."""
    return Union([Unicode(), Callable()], allow_none=True, default_value=None, help=text).tag(config=True)


class CurbMixin(Configurable):  # type: ignore[misc]
    """Adds curb's variables to the environment of a user's server. Each option may be a function of the spawner."""

    cap = _option(
        "The most GPU memory that a kernel may hold of each GPU: '6GiB', '25%', 'cuda:0=4GiB', or a function: "
        "lambda spawner: '20GiB' if spawner.user.name == 'alice' else '6GiB'"
    )
    user_cap = _option(
        "The most that all kernels and terminals of a user may hold of each GPU together: '10GiB', or a function. In "
        "containers they need one IPC namespace, as they have within one server."
    )
    nap = _option(
        "A kernel leaves its GPUs after this time without a CUDA call, until its next call: '10m'. It needs driver "
        "570 or newer."
    )
    policy = _option(
        "The path of a policy, which may be edited while kernels run: lambda spawner: "
        "f'/etc/curb/users/{spawner.user.name}.json'. Users must be able to read it."
    )
    steer = Bool(
        False, help="Frameworks take memory as they need it, and can give it back (curb run --steer)"
    ).tag(config=True)
    library = Unicode(
        None,
        allow_none=True,
        help="The path of libcurb.so where servers run, if they run in containers or on other machines. Without it: that "
        "of the Hub's own environment.",
    ).tag(config=True)

    def get_env(self) -> dict[str, str]:
        """The server's environment. An option that curb cannot use fails the start of the server, in curb's words."""
        env: dict[str, str] = super().get_env()
        options = {name: self._asked(name) for name in ("cap", "user_cap", "nap", "policy")}
        options["job_cap"] = options.pop("user_cap")
        elsewhere = options.pop("policy") if self.library else None  # this machine need not have that file
        try:
            own = curb.environment(steer=self.steer, **options)
        except curb.CurbError as error:
            raise Refused(str(error)) from error
        if elsewhere:
            own["CURB_POLICY"] = elsewhere
        if "CURB_JOB_CAP" in own:
            own["CURB_JOB"] = f"jupyterhub-{self.user.name}"
        for name in ("CURB_CAP", "CURB_JOB_CAP"):
            if env.get(name) and name in own:
                own[name] += "," + env[name]  # of several caps the lowest holds
        ours = self.library or curb.library()
        own["LD_PRELOAD"] = ":".join(filter(None, [ours, env.get("LD_PRELOAD")]))
        return {**env, **own}

    def _asked(self, option: str) -> Any:
        """The value of an option; of a function, its answer for this user."""
        value = getattr(self, option)
        try:
            return value(self) if callable(value) else value
        except Exception as error:
            why = f"the function c.CurbMixin.{option} failed for {self.user.name}: {type(error).__name__}: {error}"
            raise Refused(why) from error


class CurbSpawner(CurbMixin, LocalProcessSpawner):  # type: ignore[misc]
    """JupyterHub's own spawner, under curb."""


class Refused(ValueError):
    """JupyterHub shows jupyterhub_message to the user whose server does not start."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.jupyterhub_message: Any = f"curb's settings in jupyterhub_config.py cannot be used: {why}"
