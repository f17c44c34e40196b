"""Slurm on this machine: a controller here, and each node a network namespace. Needs root and Debian's slurmctld, slurmd, slurm-client and munge."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from tests.cluster.harness import free_port
from tests.faults.hosts import run
from tests.needs import lacks, needs_root, needs_tool
from tests.pace import wait_for

_PACKAGES = {
    "ip": "iproute2",
    "nsenter": "util-linux",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "munged": "munge",
}
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
SchedulerParameters=batch_sched_delay=1,sched_min_interval=200000
PartitionName=p Nodes=n[0-{last}] Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A cluster of `n0`, `n1`, ... in one network. Slurm knows their addresses, and no name server does."""

    def __init__(self, nodes: int, number: int, directory: Path) -> None:
        self._count, self._directory = nodes, directory
        self._tag = f"sl{os.getpid() % 10_000}x{number}"
        self._network = f"10.214.{number}"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}

    def make(self) -> None:
        """Bring its network up."""
        run("ip", "link", "add", self._tag, "type", "bridge")
        run("ip", "addr", "add", f"{self._network}.1/24", "dev", self._tag)
        run("ip", "link", "set", self._tag, "up")
        for node in range(self._count):
            name = self._space(node)
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"{name}v", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", f"{name}v", "master", self._tag, "up")
            run("ip", "-n", name, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            for link in ("eth0", "lo"):
                run("ip", "-n", name, "link", "set", link, "up")

    def start(self) -> None:
        """Start its daemons, and wait until every node is idle."""
        directory = self._directory
        (directory / "state").mkdir()
        key = directory / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        conf = _CONF.format(
            name=socket.gethostname().partition(".")[0],
            controller=f"{self._network}.1",
            port=free_port(),
            directory=directory,
            last=self._count - 1,
        )
        nodes = [
            f"NodeName=n{node} NodeAddr={self.address(node)} NodeHostname={socket.gethostname().partition('.')[0]} Port={free_port()} CPUs=8\n"
            for node in range(self._count)
        ]
        (directory / "slurm.conf").write_text(conf + "".join(nodes))
        files = [
            f"--{name}={directory}/munge.{end}" for name, end in (("socket", "sock"), ("key-file", "key"))
        ]
        files += [f"--{name}-file={directory}/munge.{name}" for name in ("pid", "log", "seed")]
        self._start("munge", "munged", "--foreground", "--force", *files)
        wait_for((directory / "munge.sock").exists, "socket of munge", self._logs)
        self._start("controller", "slurmctld", "-D")
        for node in range(self._count):
            self.start_node(node)
        wait_for(lambda: self.states() == ["idle"] * self._count, "idle nodes", self._logs)

    def start_node(self, node: int) -> None:
        """Start a node's daemon, and its network."""
        run("ip", "link", "set", f"{self._space(node)}v", "up")
        (self._directory / f"spool.n{node}").mkdir(exist_ok=True)
        space = f"--net=/run/netns/{self._space(node)}"
        self._start(f"n{node}", "nsenter", space, "slurmd", "-D", "-N", f"n{node}")

    def kill_node(self, node: int) -> None:
        """Take a node away, as if its power failed: nobody says goodbye to anybody."""
        run("ip", "link", "set", f"{self._space(node)}v", "down")
        for pid in self.processes(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._daemons.pop(f"n{node}").wait()

    def processes(self, node: int) -> list[int]:
        """All that run in a node."""
        listed = subprocess.run(
            ("ip", "netns", "pids", self._space(node)),
            capture_output=True,
            check=True,
            text=True,
            timeout=120,
        )
        return [int(pid) for pid in listed.stdout.split()]

    def address(self, node: int) -> str:
        """Of a node."""
        return f"{self._network}.{node + 2}"

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
        return self.ask("sinfo", "-h", "-N", "-o", "%T").replace("*", "").split()

    def job(self, number: int) -> Mapping[str, str]:
        """What Slurm says of a job."""
        said = self.ask("scontrol", "show", "job", str(number), "-o")
        return dict(word.partition("=")[::2] for word in said.split() if "=" in word)

    def stop(self) -> None:
        """End everything."""
        left: Sequence[psutil.Process] = ()
        for node in range(self._count):
            with contextlib.suppress(subprocess.CalledProcessError):
                for pid in self.processes(node):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        for daemon in self._daemons.values():
            daemon.terminate()
        for daemon in self._daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()
            daemon.wait()
        assert not left

    def remove(self) -> None:
        """Its network."""
        for node in range(self._count):
            subprocess.run(("ip", "netns", "del", self._space(node)), capture_output=True, check=False)
        subprocess.run(("ip", "link", "del", self._tag), capture_output=True, check=False)

    def _space(self, node: int) -> str:
        return f"{self._tag}n{node}"

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
def slurm(nodes: int) -> Iterator[Slurm]:
    """A cluster, ended with all that runs in it; skips with its reason where that is impossible."""
    needs_root()
    for tool, package in _PACKAGES.items():
        needs_tool(tool, package)
    # A socket's path is short.
    directory = Path(tempfile.mkdtemp(prefix="slurm"))
    cluster = _made(nodes, directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        cluster.remove()
        shutil.rmtree(directory, ignore_errors=True)


def _made(nodes: int, directory: Path) -> Slurm:
    said = ""
    for turn in range(5):
        cluster = Slurm(nodes, (os.getpid() + 37 * turn) % 250, directory)
        try:
            cluster.make()
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip()
            cluster.remove()
        else:
            return cluster
    return lacks("network namespaces", said)
