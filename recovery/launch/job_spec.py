"""A job in the launcher's own words: its hosts and workers, where they run, where the scheduler listens, how processes begin, what follows a failure.

Each command that starts jobs reads its flags into one `JobSpec`, and the launcher reads nothing else of what was typed. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from recovery.errors import SettingError


class Restart(str, Enum):
    """What is started again after a failure."""

    AUTO = "auto"
    """By the script's imports."""
    WORKER = "worker"
    """The process that failed: the script uses recovery, and its survivors stay."""
    WORLD = "world"
    """All workers' programs, which load their own newest checkpoint."""


class Rejoin(str, Enum):
    """Under which node id a lost worker's process is started again."""

    NEW = "new"
    """A fresh one, which takes the lost one's rank at once; the lost one stays refused for its window."""
    SAME = "same"
    """The lost one, which waits until its window is over."""
    PROOF = "proof"
    """The lost one, which returns as soon as the scheduler knows that the process before it is dead (MS_REJOIN=proof)."""


class StartMethod(str, Enum):
    """How workers begin."""

    AUTO = "auto"
    """Forked where that is safe, else spawned."""
    FORK = "fork"
    """From a template process that has imported what they need; the job fails where that is not safe."""
    SPAWN = "spawn"
    """Each by itself, from its first import on."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher sees of the machine it runs on."""

    name: str
    """For names of logs."""
    address: str
    """Its own, towards the scheduler: names its workers while ranks are automatic, and their logs."""
    owns_master_addr: bool
    interpreter: str
    """That scripts are started with."""
    cpus: tuple[int, ...]
    numa_nodes: tuple[int, ...]


class Bound(NamedTuple):
    """Where one process may run."""

    cpus: tuple[int, ...] = ()
    """Processors; none: all."""
    prefix: tuple[str, ...] = ()
    """Words before its command, which bind its memory; none: it may lie anywhere."""


def unbound(_place: str, _index: int, _host: Host) -> Bound:
    """Wherever it likes."""
    return Bound()


class DryRun(msgspec.Struct, frozen=True):
    """One rank is run in one process, without devices and without a scheduler."""

    level: int
    """MindSpore's: 0 to 3."""
    rank: int


FLAGS_BEHIND: dict[str, dict[str, str]] = {
    "run": {
        "MS_WORKER_NUM": "--nnodes and --nproc-per-node",
        "MS_TOPO_TIMEOUT": "--rdzv-conf=timeout=SECONDS",
        "MS_STANDBY_NUM": "--standbys and --spares",
    },
    "msrun": {
        "MS_WORKER_NUM": "--worker_num",
        "MS_TOPO_TIMEOUT": "--cluster_time_out",
        "MS_STANDBY_NUM": "--standby_num and --spares",
    },
}
"""By command and variable: what sets it. Processes are given the variables, and name those in what they refuse."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One job, as one host starts its part of it."""

    typed_as: Literal["run", "msrun"]
    """By which command: what is said of the job names that command's flags, and workers of `run` find torchrun's variables."""
    task: tuple[str, ...]
    """The script, or a program that the launcher knows, and its arguments."""

    worker_num: int
    """Of the whole job."""
    local_worker_num: int
    """Of this host."""
    worker_num_is_default: bool = False
    """Nobody has said how many workers the whole job has."""
    standby_num: int = 0
    """Processes of this host that wait for the rank of a worker that is lost."""
    spare_hosts: int = 0
    """Hosts beyond those that the workers need: all that they run waits for the ranks of a host that is lost."""
    node_rank: int = -1
    """Position of this host, the spare ones last; -1: the scheduler gives the ranks."""

    master_addr: str = "127.0.0.1"
    """Where the scheduler listens."""
    master_port: int = 8118
    cluster_time_out: int = 600
    """Seconds to wait for all workers; negative: no limit."""

    bind: Callable[[str, int, Host], Bound] = unbound
    """Where a process may run: by its name (`scheduler` or `device<n>`), its index on this host, and the host. Raises SettingError where the
    host lacks what is named."""
    variables: dict[str, str] = {}
    """Of all processes, beside those that every job has."""
    worker_variables: dict[str, str] = {}
    """The same of workers and standbys."""
    dry_run: DryRun | None = None

    start_method: StartMethod = StartMethod.AUTO
    restart: Restart = Restart.AUTO
    rejoin: Rejoin = Rejoin.NEW
    max_restarts: int = 3
    """Relaunches of one process within an hour."""
    signals_to_handle: tuple[int, ...] = ()
    """Further signals that ask the job to stop."""
    continue_run: bool | None = None
    """Does a finished job's run go on from its last checkpoint, or does its next run begin? None: MS_CONTINUE says it."""

    join: bool = False
    """Does the launcher stay in the foreground?"""
    log_dir: Path = Path()
    worker_log_name: str = "worker"
    """May hold `{ip}` and `{hostname}`."""
    tail_worker_log: tuple[int, ...] | None = None
    """Ranks whose log is shown in the foreground; None: all."""
    progress: bool = True
    """Is there a line on a terminal that says how far training is?"""

    def __post_init__(self) -> None:
        """Check what several parts say together, before anything starts.

        Raises:
            SettingError: there is nothing to start; two parts exclude each other.
        """
        if not self.task:
            raise SettingError(
                "SETTING_MISSING",
                field="task_script",
                state="missing",
                rule="the script to start comes after the flags",
                next_step="Write, for example: recovery msrun --worker_num=4 train.py --epochs 10.",
            )
        total, local = self.worker_num, self.local_worker_num
        if local > total:
            raise SettingError(
                "SETTING_CONFLICT",
                field="--local_worker_num",
                value=local,
                rule=f"is more than --worker_num={total}, the workers of all hosts together",
                next_step="Lower it, or raise --worker_num.",
            )
        first = self.node_rank * local
        if self.spare_hosts and self.node_rank >= self.host_count + self.spare_hosts:
            raise SettingError(
                "SETTING_CONFLICT",
                field="--node_rank",
                value=self.node_rank,
                rule=f"is beyond the {self.host_count} hosts of --nnodes and --spares={self.spare_hosts}; the first is 0",
                next_step=f"Give 0 to {self.host_count + self.spare_hosts - 1}, or raise --spares on every host.",
            )
        if self.node_rank >= 0 and first + local > total and local < total and not self.is_spare:
            raise SettingError(
                "SETTING_CONFLICT",
                field="--node_rank",
                value=self.node_rank,
                rule=f"its ranks would be {first} to {first + local - 1}, but there are {total} workers",
                next_step="Give --node_rank=-1 where hosts have different numbers of workers.",
            )
        if self.standby_num and self.dry_run is not None:
            raise SettingError(
                "SETTING_CONFLICT",
                field="--standby_num",
                value=self.standby_num,
                rule="is for a job whose workers may be lost, and --sim_level asks for a dry run of one process",
                next_step="Leave one of the two out.",
            )

    @property
    def is_on_one_host(self) -> bool:
        """Are all workers of the job this host's, and are there no other hosts?"""
        return self.local_worker_num == self.worker_num and not self.spare_hosts

    @property
    def host_count(self) -> int:
        """Hosts that the workers need, where each has as many as this one."""
        return -(-self.worker_num // self.local_worker_num)

    @property
    def is_spare(self) -> bool:
        """Does all that this host runs wait?"""
        return self.spare_hosts > 0 and self.node_rank >= self.host_count

    @property
    def waiting_num(self) -> int:
        """Processes of all hosts that wait."""
        waiting = self.host_count * self.standby_num
        return waiting + self.spare_hosts * (self.local_worker_num + self.standby_num)
