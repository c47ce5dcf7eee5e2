"""A Slurm cluster for tests, with one controller and two nodes: on loopback, without munge, systemd and accounting.

n1 has two GPUs of four shards, n2 one; both have other resources, disk and gpumem. The daemons run as the calling user, from the installed packages of Slurm.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0
SHARDS_PER_GPU = 4

SLURM_CONF = """\
ClusterName=sandbox
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/spool/ctld.pid
SlurmdPidFile={folder}/spool/%n.pid
SlurmctldLogFile={folder}/log/ctld
SlurmdLogFile={folder}/log/%n
PlugStackConfig={folder}/etc/plugstack.conf
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
FirstJobId={first}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu,shard,disk,gpumem
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
ReturnToService=2
KillWait=2
{more}
NodeName=n1 {machine} Port={port1} Gres=gpu:fake:2,shard:8,disk:100,gpumem:100
NodeName=n2 {machine} Port={port2} Gres=gpu:fake:1,shard:4,disk:100,gpumem:100
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=10 State=UP
"""
MACHINE = (
    "NodeHostname={host} NodeAddr=127.0.0.1 CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=2000"
)
PLAIN = "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none"
# slurmd sets CUDA_VISIBLE_DEVICES for character devices only.
GRES_CONF = """\
AutoDetect=off
NodeName=n1 Name=gpu Type=fake File={folder}/dev/nvidia[0-1]
NodeName=n1 Name=shard Count=8
NodeName=n2 Name=gpu Type=fake File={folder}/dev/nvidia0
NodeName=n2 Name=shard Count=4
NodeName=n[1-2] Name=disk Count=100
NodeName=n[1-2] Name=gpumem Count=100
"""


def free_ports() -> int:
    """The first of three free ports in a row."""
    for _ in range(100):
        first = 20000 + 3 * (int.from_bytes(os.urandom(2), "big") % 8000)
        sockets = [socket.socket() for _ in range(3)]
        try:
            for i, one in enumerate(sockets):
                one.bind(("127.0.0.1", first + i))
            return first
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    sys.exit("no free ports")


class Cluster:
    """Runs within a `with`. `plugstack`: its text, with {plugin}. `more`: lines of slurm.conf. `user`: uid that submits jobs."""

    def __init__(
        self,
        build: Path,
        plugstack: str,
        more: str = PLAIN,
        user: int | None = None,
        etc: dict[str, str | bytes] | None = None,
        cgroup: str = "",
        devices: bool = False,
        inside: list[str] | None = None,
    ) -> None:
        # Not in /tmp, which job_container/tmpfs hides.
        self.folder = Path(tempfile.mkdtemp(prefix="curb-slurm-", dir="/var/tmp"))
        self.folder.chmod(0o755)
        self.user = user
        self.history: list[tuple[str, str]] = []  # commands of users, with their output
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.inside = [word.format(folder=self.folder) for word in inside or []]
        for name in ("etc", "log", "state", "spool/n1", "spool/n2", "dev", "container", "jobs"):
            (self.folder / name).mkdir(parents=True)
        self.jobs = self.folder / "jobs"
        self.jobs.chmod(0o777)
        for number, stand_in in enumerate(("/dev/null", "/dev/zero")):
            if devices:
                os.mknod(self.folder / f"dev/nvidia{number}", 0o20666, os.makedev(195, number))
                (self.folder / f"dev/nvidia{number}").chmod(0o666)
            else:
                (self.folder / f"dev/nvidia{number}").symlink_to(stand_in)
        host, port = socket.gethostname().split(".")[0], free_ports()
        words: dict[str, Any] = {
            "host": host,
            "port": port,
            "port1": port + 1,
            "port2": port + 2,
            # The name of curb's job has the job's number, so numbers of two clusters on one machine must differ.
            "first": 100 * port,
            "folder": self.folder,
            "user": subprocess.check_output(["id", "-un"], text=True).strip(),
        }
        words |= {"machine": MACHINE.format(**words), "more": more.format(**words)}
        plugstack = plugstack.format(plugin=build / "lib/spank_curb.so", lib=build / "lib/libcurb.so", **words)
        texts = {"slurm.conf": SLURM_CONF.format(**words), "gres.conf": GRES_CONF.format(**words), "plugstack.conf": plugstack,
                 "cgroup.conf": cgroup or "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"}  # fmt: skip
        for name, text in (texts | (etc or {})).items():
            (self.folder / "etc" / name).write_bytes(text if isinstance(text, bytes) else text.encode())
            (self.folder / "etc" / name).chmod(0o755)
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("CURB_", "LD_", "SLURM_", "XDG_"))}
        self.environment = bare | {
            "SLURM_CONF": str(self.folder / "etc/slurm.conf"),
            "HOME": str(self.jobs),
            "LD_LIBRARY_PATH": str(build / "sim"),
            "CURB_SIM_MEMORY": "16GiB",
            "CURB_SIM_GPUS": "2",
        }

    def __enter__(self) -> Cluster:
        try:
            self.start(["slurmctld", "-D"])
            for node in ("n1", "n2"):
                self.start([*self.inside, "slurmd", "-D", "-N", node])
            self.wait_for(lambda: self.states() == ["idle", "idle"], "both nodes idle")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["scancel", "--user", str(self.user or os.getuid())], env=self.environment, check=False)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for process in self.left():
            os.kill(process, signal.SIGKILL)
        if os.environ.get("CURB_SLURM_KEEP"):
            print(f"kept: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def left(self) -> list[int]:
        """The processes of this cluster: its daemons, their helpers for jobs, and the jobs' own."""
        out = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"SLURM_CONF={self.folder}/".encode() in file.read_bytes():
                    out.append(int(file.parent.name))
            except OSError:
                continue
        return out

    def start(self, command: list[str]) -> None:
        """Starts a daemon, which ends with this process, even after SIGKILL."""
        with (self.folder / "log/daemons").open("ab") as log:
            self.daemons.append(
                subprocess.Popen(
                    ["setpriv", "--pdeathsig", "TERM", "--", *command],
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            )

    def wait_for(self, condition: Any, what: str, patience: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(
                    f"{log}:\n" + "\n".join(log.read_text().splitlines()[-8:]) for log in self.folder.glob("log/*")
                )
                raise AssertionError(f"{what} did not happen in time\n{logs}")
            time.sleep(0.05)

    def states(self) -> list[str]:
        return self.run("sinfo", "-h", "-N", "-o", "%T").stdout.split()

    def run(self, *command: object, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command as the user who submits jobs."""
        done = subprocess.run(
            [str(word) for word in command], env=self.environment | environment, input=stdin, capture_output=True, text=True,
            cwd=self.jobs, timeout=2 * PATIENCE_S, check=False, user=self.user, group=self.user,
            extra_groups=None if self.user is None else [],
        )  # fmt: skip
        typed = [*(f"{name}={value}" for name, value in environment.items()), *map(str, command)]
        self.history.append((" ".join(typed).replace(f"{self.folder}/", ""), done.stdout))
        return done

    def srun(self, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("srun", *words, **environment)

    def sbatch(self, script: str, *words: object, **environment: str) -> str:
        """Returns the job's number. The script's output is in output(JOB)."""
        done = self.run("sbatch", "--parsable", "--output=%j.out", *words, stdin="#!/bin/bash\n" + script, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def output(self, job: str) -> str:
        try:
            return (self.jobs / f"{job}.out").read_text()
        except FileNotFoundError:
            return ""

    def state(self, job: str) -> str:
        found = re.search(r"JobState=(\w+)", self.run("scontrol", "show", "job", job).stdout)
        return found.group(1) if found else ""

    def ended(self, job: str) -> str:
        """Waits until a job or array has ended, and returns its state."""
        self.wait_for(
            lambda: not self.run("squeue", "-h", "-j", job).stdout.strip(), f"the end of job {job}: {self.output(job)}"
        )
        return self.state(job)

    def batch(self, script: str, *words: object, **environment: str) -> str:
        """Runs a batch script to its end and returns its output."""
        job = self.sbatch(script, *words, **environment)
        state = self.ended(job)
        self.history.append((f"sbatch {' '.join(map(str, words))}: {script}".replace(f"{self.folder}/", ""), self.output(job)))
        assert state == "COMPLETED", f"{state}: {self.output(job)}"
        return self.output(job)
