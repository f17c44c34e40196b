"""Slurm on this machine: a controller here, and each node a network namespace. Needs root and Debian's slurmctld, slurmd, slurm-client and munge."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.cluster.harness import free_port
from tests.faults.network import Network, network
from tests.needs import needs_tool
from tests.pace import wait_for

_PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge"}
_CONF = """\
ClusterName=tests
SlurmctldHost={name}({controller})
SlurmctldPort={port}
SlurmctldPidFile={directory}/controller.pid
SlurmdPidFile={directory}/%n.pid
SlurmdSpoolDir={directory}/spool.%n
StateSaveLocation={directory}/state
SlurmctldLogFile={directory}/controller.log
SlurmdLogFile={directory}/%n.log
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={directory}/munge.sock
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SlurmdTimeout=5
KillWait=30
TreeWidth=65533
GresTypes=gpu
SchedulerParameters=batch_sched_delay=1,sched_min_interval=200000
{further}
PartitionName=p Nodes=n[0-{last}] Default=YES MaxTime=INFINITE State=UP
"""

PREEMPTION = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=DEFAULT GraceTime=60
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""
"""Further lines: a job in `high` takes the nodes of others, which have a minute."""


class Slurm:
    """A cluster of `n0`, `n1`, ... Slurm knows their addresses, and no name server does."""

    def __init__(self, hosts: Network, directory: Path, further: str) -> None:
        self._hosts, self._directory, self._further = hosts, directory, further
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}

    def start(self) -> None:
        """Start its daemons, and wait until every node is idle."""
        directory, count = self._directory, self._hosts.count
        (directory / "state").mkdir()
        key = directory / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        name = socket.gethostname().partition(".")[0]
        conf = _CONF.format(
            name=name,
            controller=self._hosts.here,
            port=free_port(),
            directory=directory,
            further=self._further,
            last=count - 1,
        )
        for node in range(count):
            where = f"NodeAddr={self._hosts.address(node)} NodeHostname={name} Port={free_port()}"
            conf += f"NodeName=n{node} {where} CPUs=8 Gres=gpu:4\n"
        # They are counted, and nobody opens them.
        (directory / "gres.conf").write_text(
            "".join(f"Name=gpu File=/dev/{name}\n" for name in ("null", "zero", "full", "random"))
        )
        (directory / "slurm.conf").write_text(conf)
        files = [
            f"--{name}={directory}/munge.{end}" for name, end in (("socket", "sock"), ("key-file", "key"))
        ]
        files += [f"--{name}-file={directory}/munge.{name}" for name in ("pid", "log", "seed")]
        self._start("munge", "munged", "--foreground", "--force", *files)
        wait_for((directory / "munge.sock").exists, "socket of munge", self._logs)
        self._start("controller", "slurmctld", "-D")
        for node in range(count):
            self.start_node(node)
        wait_for(lambda: self.states() == ["idle"] * count, "idle nodes", self._logs)

    def start_node(self, node: int) -> None:
        """Start a node's daemon."""
        (self._directory / f"spool.n{node}").mkdir(exist_ok=True)
        self._start(f"n{node}", *self._hosts.inside(node), "slurmd", "-D", "-N", f"n{node}")

    def kill_node(self, node: int) -> None:
        """Take a node away, as if its power failed."""
        self._hosts.kill(node)
        self._daemons.pop(f"n{node}").wait()

    def ask(self, *command: str, cwd: Path | None = None, **variables: str) -> str:
        """Run one of Slurm's commands, or of ours on a login node. Gives what it has printed."""
        done = subprocess.run(
            command,
            cwd=cwd or self._directory,
            env={**self.environment, **variables},
            capture_output=True,
            check=False,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def states(self) -> list[str]:
        """Of the nodes."""
        return self.ask("sinfo", "-h", "-N", "-p", "p", "-o", "%T").replace("*", "").split()

    def job(self, number: int) -> Mapping[str, str]:
        """What Slurm says of a job."""
        said = self.ask("scontrol", "show", "job", str(number), "-o")
        return dict(word.partition("=")[::2] for word in said.split() if "=" in word)

    def stop(self) -> None:
        """End everything."""
        for node in range(self._hosts.count):
            self._hosts.end(node)
        for daemon in self._daemons.values():
            daemon.terminate()
        for daemon in self._daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()
            daemon.wait()

    def _start(self, name: str, *command: str) -> None:
        with (self._directory / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self._directory,
            )

    def _logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}"
            for path in sorted(self._directory.glob("*.log"))
        )


@contextlib.contextmanager
def slurm(nodes: int, further: str = "") -> Iterator[Slurm]:
    """A cluster, ended with all that runs in it; skips with its reason where that is impossible. `further` lines stand in its slurm.conf."""
    for tool, package in _PACKAGES.items():
        needs_tool(tool, package)
    # A socket's path is short.
    directory = Path(tempfile.mkdtemp(prefix="slurm"))
    with network(nodes) as hosts:
        cluster = Slurm(hosts, directory, further)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
            shutil.rmtree(directory, ignore_errors=True)
