"""The flags of `recovery msrun`: msrun's own (MindSpore 2.10 and its documents), and torchrun's names where they mean the same."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from recovery.launch import flag_values as values

_PORTS = range(1024, 65536)
_SIMULATIONS = range(4)


class Flag(NamedTuple):
    """One row."""

    name: str
    read: Callable[[str, str], Any]
    """From (flag, text as typed) to the value; raises a named error."""
    default: Any
    help: str
    aliases: tuple[str, ...] = ()


FLAGS = (
    Flag("worker_num", values.number(1, None, "greater than 0", "8"), 8, "workers of the whole job"),
    Flag(
        "local_worker_num",
        values.number(1, None, "greater than 0", "8"),
        None,
        "workers to start on this host (all)",
        ("nproc_per_node",),
    ),
    Flag(
        "nnodes",
        values.number(1, None, "greater than 0", "2"),
        None,
        "hosts, as torchrun counts: worker_num is nnodes x nproc_per_node",
    ),
    Flag("master_addr", values.host, "127.0.0.1", "where the scheduler listens: IPv4, IPv6 or a host name"),
    Flag(
        "master_port", values.number(_PORTS.start, _PORTS[-1], "from 1024 to 65535", "8118"), 8118, "its port"
    ),
    Flag(
        "node_rank",
        values.number(-1, None, "0 or more, or -1 for automatic ranks", "0"),
        -1,
        "position of this host",
    ),
    Flag("log_dir", values.path, Path(), "where logs go; made if absent"),
    Flag(
        "join",
        values.switch,
        False,
        "True: stay, show logs, end with the job. False: hand over to an agent in the background",
    ),
    Flag(
        "cluster_time_out",
        values.number(-(10**9), 10**9, "a number of seconds", "600"),
        600,
        "seconds to wait for all workers; negative: no limit",
    ),
    Flag("bind_core", values.binding, False, "True, False or JSON: processors of each process"),
    Flag(
        "bind_numa",
        values.numa_binding,
        False,
        "True, False, JSON or a JSON file: memory nodes of each process",
    ),
    Flag(
        "sim_level",
        values.number(-1, _SIMULATIONS[-1], "from 0 to 3, or -1 for none", "1"),
        -1,
        "dry run of one rank, in one process",
    ),
    Flag(
        "sim_rank_id",
        values.number(-1, None, "a rank, or -1 for rank 0", "0"),
        -1,
        "the rank of a dry run; -1: 0",
    ),
    Flag("rank_table_file", values.path, None, "rank table (JSON), checked and handed on as RANK_TABLE_FILE"),
    Flag("worker_log_name", values.log_name, "worker", "name of the workers' logs"),
    Flag("tail_worker_log", values.tail, None, "ranks whose log is shown while joined; -1: all"),
    Flag("tee", values.tee, None, "torchrun's way to say --tail_worker_log: 3, or 0:3,1:3"),
    Flag(
        "restart",
        values.restart,
        values.Restart.AUTO,
        "what is started again after a failure: worker (the script uses recovery) or world (any other); auto: by its imports",
    ),
    Flag(
        "start_method",
        values.start_method,
        values.StartMethod.AUTO,
        "how workers begin: fork (of one process that has imported what they need), spawn (each imports by itself); "
        "auto: fork where it is safe",
    ),
    Flag(
        "max_restarts",
        values.number(0, 1000, "from 0 to 1000", "3"),
        3,
        "relaunches of one process within an hour",
    ),
    Flag(
        "rejoin",
        values.rejoin,
        values.Rejoin.NEW,
        "who takes a lost worker's rank: new (its next process, at once, under a fresh node id), same (the same id, when MS_REJOIN_WINDOW is over) or proof (the same id, as soon as the process before it is known to be dead)",
    ),
    Flag(
        "enable_ssl",
        values.switch,
        False,
        "True: all processes of the job speak TLS (MS_ENABLE_SSL=1), and this launcher with them",
    ),
    Flag(
        "config_file_path",
        values.path,
        None,
        "config.json of the secure channel (MS_CONFIG_FILE_PATH); `recovery certs init DIR` makes one",
    ),
    Flag(
        "client_password_file",
        values.path,
        None,
        "0600 file with the password of client_cert_path (MS_CLIENT_PASSWORD_FILE); a password itself is taken by no flag",
    ),
    Flag(
        "server_password_file",
        values.path,
        None,
        "0600 file with the password of server_cert_path (MS_SERVER_PASSWORD_FILE)",
    ),
    Flag(
        "standby_num",
        values.number(0, 1000, "from 0 to 1000", "1"),
        0,
        "processes to start on this host beside the workers, which wait and take the rank of a worker that is lost",
    ),
)


def shown(default: object) -> str:
    """A default as it would be typed."""
    return default.value if isinstance(default, Enum) else str(default)
