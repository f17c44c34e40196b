"""Under mpirun and srun, and with a rank table, nobody starts a scheduler, so rank 0 does: a child process that ends with it.

A person may have started one before (`recovery scheduler`); then that one serves.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys

from typing_extensions import assert_never

from recovery.config import Settings
from recovery.config.foreign_launchers import StartedBy
from recovery.tls import process_channels
from recovery.transport.local_address import is_local

_logger = logging.getLogger("recovery.training")
_DIAL_S = 1.0
_BY_SRUN = (
    "event=not_started_again srun starts no task again that ends: the others wait for it (MS_TOPO_TIMEOUT), and the job fails; the same command "
    "goes on. `recovery slurm` keeps processes and hosts (docs/howto/slurm.md)"
)
"""What a step without a launcher of ours cannot do."""


def start_if_due(settings: Settings) -> None:
    """Start it if this process is rank 0 of such a start, the scheduler's address is this host's, and nobody answers there.

    Raises:
        UsageError: the script has said something of TLS that cannot be handed on.
    """
    match settings.started_by:
        case StartedBy.DYNAMIC_CLUSTER:
            return
        case StartedBy.OPENMPI | StartedBy.RANK_TABLE | StartedBy.SLURM:
            if settings.node_id == "0":
                _start_if_absent(settings)
                if settings.started_by is StartedBy.SLURM and settings.rules.recovery_enabled:
                    _logger.warning(_BY_SRUN)
        case _ as unknown:
            assert_never(unknown)


def _start_if_absent(settings: Settings) -> None:
    host, port = settings.sched_host, settings.sched_port
    if not is_local(host) or _answers(host, port):
        return
    variables = {
        "MS_ROLE": "MS_SCHED",
        "MS_WORKER_NUM": str(settings.rules.worker_count),
        "MS_SCHED_HOST": host,
        "MS_SCHED_PORT": str(port),
        **process_channels.variables_of(settings.secure_channel),
    }
    if settings.job_token is not None:
        # The environment of this process has it no more.
        variables["MS_JOB_TOKEN"] = settings.job_token.reveal()
    # A session of its own, since a Ctrl+C is for rank 0; the scheduler ends after it.
    process = subprocess.Popen(  # noqa: S603 - our own command, by our own interpreter
        [sys.executable, "-m", "recovery", "scheduler", f"--with-pid={os.getpid()}"],
        env={**os.environ, **variables},  # noqa: TID251 - handed on
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    _logger.info("event=scheduler_started_by_rank_0 address=%s:%d pid=%d", host, port, process.pid)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_DIAL_S).close()
    except OSError:
        return False
    return True
