"""Launchers that set no MS_* variables: mpirun, srun, and what gives each process a rank table. Theirs are translated into the MS_* variables that mean the same.

A variable that is set stays as it is. With MS_ROLE set, the process is started as a dynamic cluster, whatever else is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path

import msgspec

from recovery.config import rank_table, slurm_allocation
from recovery.errors import SettingError, UsageError

DEFAULT_PORT = "8118"
"""msrun's."""
SUPERVISED = "MS_SUPERVISED"
"""Set for a program whose worker proxy is the node of the cluster: it has no place of its own there."""
_LOOPBACK = "127.0.0.1"


class StartedBy(str, Enum):
    """From what the process learned its place."""

    DYNAMIC_CLUSTER = "environment"
    OPENMPI = "mpirun"
    SLURM = "srun"
    RANK_TABLE = "rank table"


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What was recognised."""

    started_by: StartedBy
    variables: dict[str, str]
    """MS_* variables that follow from it and were not set."""


def recognise(environ: Mapping[str, str]) -> Start:
    """Find out how this process was started.

    Raises:
        UsageError: `recovery msrun` took the script for one that knows nothing of recovery.
        SettingError: ranks are on several hosts, and the address of the scheduler is not set; the rank table is none, or not this job's.
    """
    if environ.get(SUPERVISED):
        raise UsageError(
            field="recovery",
            reason="is used by this script, but no import of it was found in the script or the files beside it, so that "
            "`recovery msrun` has given its place in the cluster to a worker proxy",
            next_step="Start it with --restart=worker.",
        )
    if "MS_ROLE" not in environ:
        for marks, started_by, derive in _LAUNCHERS:
            if all(environ.get(mark) for mark in marks):
                found = {"MS_ROLE": "MS_WORKER", "MS_SCHED_PORT": DEFAULT_PORT, **derive(environ)}
                return Start(
                    started_by=started_by,
                    variables={name: value for name, value in found.items() if not environ.get(name)},
                )
    return Start(started_by=StartedBy.DYNAMIC_CLUSTER, variables={})


def _openmpi(environ: Mapping[str, str]) -> dict[str, str]:
    """Open MPI gives every process its rank and the size of the world, but no address that all could meet at."""
    size = environ["OMPI_COMM_WORLD_SIZE"]
    found = {"MS_NODE_ID": environ["OMPI_COMM_WORLD_RANK"], "MS_WORKER_NUM": size}
    if environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == size:
        return {**found, "MS_SCHED_HOST": _LOOPBACK}
    if not environ.get("MS_SCHED_HOST"):
        raise SettingError(
            "SETTING_MISSING",
            field="MS_SCHED_HOST",
            state="not set",
            value="",
            rule="with ranks on several hosts, mpirun must say where the scheduler is",
            next_step="Give it the address of rank 0's host: mpirun -x MS_SCHED_HOST=ADDRESS ... (rank 0 then starts the scheduler).",
        )
    return found


def _slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Slurm gives every task its number, and the names of the step's hosts."""
    step = slurm_allocation.read(environ)
    assert step is not None, "its variables are set"
    return {
        "MS_NODE_ID": environ["SLURM_PROCID"],
        "MS_WORKER_NUM": environ["SLURM_STEP_NUM_TASKS"],
        "MS_SCHED_HOST": step.hosts[0] if len(step.hosts) > 1 else _LOOPBACK,
        "MS_SCHED_PORT": str(step.port),
    }


def _rank_table(environ: Mapping[str, str]) -> dict[str, str]:
    """The table lists all hosts; RANK_ID is the rank of this process."""
    path, size = Path(environ["RANK_TABLE_FILE"]), environ.get("RANK_SIZE", "")
    table = rank_table.read_rank_table(
        path, field="RANK_TABLE_FILE", worker_num=int(size) if size.isdecimal() else None
    )
    return {
        "MS_NODE_ID": environ["RANK_ID"],
        "MS_WORKER_NUM": str(len(table.ranks)),
        "MS_SCHED_HOST": table.first_host if len(table.server_list) > 1 else _LOOPBACK,
    }


_LAUNCHERS: tuple[tuple[tuple[str, ...], StartedBy, Callable[[Mapping[str, str]], dict[str, str]]], ...] = (
    (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), StartedBy.OPENMPI, _openmpi),
    (("RANK_TABLE_FILE", "RANK_ID"), StartedBy.RANK_TABLE, _rank_table),
    # What Slurm places may have been started by one of the others there.
    (
        ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
        StartedBy.SLURM,
        _slurm,
    ),
)
"""The variables that show a launcher, and what they mean."""
