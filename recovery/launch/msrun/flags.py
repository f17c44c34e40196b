"""msrun's own flags (MindSpore 2.10 and its documents), and torchrun's names where they mean the same: read into a `JobSpec`.

Each row of `FLAGS` is an option of the command (recovery/cli/msrun.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recovery.errors import SettingError
from recovery.launch import flag_values as values
from recovery.launch.flag_values import Flag
from recovery.launch.job_spec import DryRun, JobSpec, Rejoin, Restart, StartMethod
from recovery.launch.msrun.binding_file import BindFile
from recovery.launch.msrun.bindings import Bindings, read_binding, read_numa_binding

_WORKERS = 8

FLAGS = {
    "worker_num": Flag(values.count, "workers of the whole job", default=_WORKERS),
    "local_worker_num": Flag(
        values.count,
        "workers to start on this host (all): torchrun's --nproc_per_node",
        aliases=("nproc_per_node",),
    ),
    "nnodes": Flag(
        values.number(1, None, "greater than 0", "2"),
        "hosts, as torchrun counts: worker_num is nnodes x nproc_per_node",
    ),
    "master_addr": Flag(
        values.host, "where the scheduler listens: IPv4, IPv6 or a host name", field="master_addr"
    ),
    "master_port": Flag(values.port, "its port", field="master_port"),
    "node_rank": Flag(values.node_rank, "position of this host", field="node_rank"),
    "log_dir": Flag(values.path, "where logs go; made if absent", field="log_dir"),
    "join": Flag(
        values.switch,
        "True: stay, show logs, end with the job. False: hand over to an agent in the background",
        field="join",
    ),
    "cluster_time_out": Flag(
        values.seconds, "seconds to wait for all workers; negative: no limit", field="cluster_time_out"
    ),
    "bind_core": Flag(read_binding, "True, False or JSON: processors of each process", default=False),
    "bind_numa": Flag(
        read_numa_binding, "True, False, JSON or a JSON file: memory nodes of each process", default=False
    ),
    "sim_level": Flag(
        values.number(-1, 3, "from 0 to 3, or -1 for none", "1"),
        "dry run of one rank, in one process",
        default=-1,
    ),
    "sim_rank_id": Flag(
        values.number(-1, None, "a rank, or -1 for rank 0", "0"), "the rank of a dry run; -1: 0", default=-1
    ),
    "rank_table_file": Flag(values.path, "rank table (JSON), checked and handed on as RANK_TABLE_FILE"),
    "worker_log_name": Flag(values.log_name, "name of the workers' logs", field="worker_log_name"),
    "tail_worker_log": Flag(
        values.tail, "ranks whose log is shown while joined; -1: all", field="tail_worker_log"
    ),
    "tee": Flag(
        values.tee, "torchrun's way to say --tail_worker_log: 3, or 0:3,1:3", field="tail_worker_log"
    ),
    "restart": Flag(
        values.one_of(Restart, "world"),
        "what is started again after a failure: worker (the script uses recovery) or world (any other); auto: by its imports",
        field="restart",
    ),
    "start_method": Flag(
        values.one_of(StartMethod, "spawn"),
        "how workers begin: fork (of one process that has imported what they need), spawn (each imports by itself); "
        "auto: fork where it is safe",
        field="start_method",
    ),
    "max_restarts": Flag(
        values.max_restarts, "relaunches of one process within an hour", field="max_restarts"
    ),
    "signals_to_handle": Flag(
        values.signals,
        "further signals that ask the job to stop, as SIGTERM, SIGINT, SIGQUIT and SIGHUP do (SIGUSR1,SIGUSR2)",
        field="signals_to_handle",
    ),
    "rejoin": Flag(
        values.one_of(Rejoin, "new"),
        "who takes a lost worker's rank: new (its next process, at once, under a fresh node id), same (the same id, when MS_REJOIN_WINDOW is over) or proof (the same id, as soon as the process before it is known to be dead)",
        field="rejoin",
    ),
    "enable_ssl": Flag(
        values.switch,
        "True: all processes of the job speak TLS (MS_ENABLE_SSL=1), and this launcher with them",
        default=False,
    ),
    "config_file_path": Flag(
        values.path,
        "config.json of the secure channel (MS_CONFIG_FILE_PATH); `recovery certs init DIR` makes one",
    ),
    "client_password_file": Flag(
        values.path,
        "0600 file with the password of client_cert_path (MS_CLIENT_PASSWORD_FILE); a password itself is taken by no flag",
    ),
    "server_password_file": Flag(
        values.path, "0600 file with the password of server_cert_path (MS_SERVER_PASSWORD_FILE)"
    ),
    "standby_num": Flag(
        values.standby_num,
        "processes to start on this host beside the workers, which wait and take the rank of a worker that is lost",
        field="standby_num",
    ),
    "spares": Flag(
        values.standby_num,
        "hosts beyond those of worker_num, all of whose processes wait, and take the ranks of a host that is lost; the same on every host",
        field="spare_hosts",
    ),
    "progress": Flag(
        values.switch,
        "False: no line below the others on a terminal that says how far training is, or what a recovery waits for",
        field="progress",
    ),
    "continue_run": Flag(
        values.switch,
        "what a start on the path of a finished job does: True: its run goes on from its last checkpoint, to a later end; "
        "False: its next run begins at step 0 (MS_CONTINUE)",
        aliases=("continue",),
        field="continue_run",
    ),
}


def job_spec(typed: Mapping[str, Any], task: Sequence[str]) -> JobSpec:
    """What was typed, in the launcher's own words.

    Args:
        typed: the flags that were given, with their values.
        task: the script and its arguments.

    Raises:
        SettingError: no script is named; two flags exclude each other.
    """
    total, local = _workers(typed)
    if "tee" in typed and "tail_worker_log" in typed:
        raise values.said_twice("tee", "tail_worker_log", typed["tee"])
    rank = typed.get("sim_rank_id", -1)
    if rank >= total:
        raise SettingError(
            "SETTING_CONFLICT",
            field="--sim_rank_id",
            value=rank,
            rule=f"there are {total} workers, so ranks end at {total - 1}",
            next_step="Give a rank that exists, or raise --worker_num.",
        )
    simulates = typed.get("sim_level", -1) >= 0
    numa = typed.get("bind_numa", False)
    return JobSpec(
        typed_as="msrun",
        task=tuple(task),
        worker_num=total,
        local_worker_num=local,
        worker_num_is_default=not {"worker_num", "nnodes"} & set(typed),
        bind=Bindings(core=typed.get("bind_core", False), numa=numa, workers=local),
        variables={**({} if simulates else _secure_channel(typed)), **_named_files(typed, numa)},
        dry_run=DryRun(typed["sim_level"], max(0, rank)) if simulates else None,
        **{flag.field: typed[name] for name, flag in FLAGS.items() if flag.field and name in typed},
    )


def _workers(typed: Mapping[str, Any]) -> tuple[int, int]:
    """Of the whole job, and of this host."""
    total = typed.get("worker_num", _WORKERS)
    if "nnodes" in typed:
        if "worker_num" in typed or "local_worker_num" not in typed:
            raise SettingError(
                "SETTING_CONFLICT",
                field="--nnodes",
                value=typed["nnodes"],
                rule="goes with --nproc_per_node, and without --worker_num, which it replaces",
                next_step="Give --nnodes and --nproc_per_node, or --worker_num and --local_worker_num.",
            )
        total = typed["nnodes"] * typed["local_worker_num"]
    return total, typed.get("local_worker_num", total)


def _named_files(typed: Mapping[str, Any], numa: object) -> dict[str, str]:
    found = {"RANK_TABLE_FILE": str(typed["rank_table_file"])} if "rank_table_file" in typed else {}
    if isinstance(numa, BindFile):
        found |= {"MSRUN_BIND_FILE": str(numa.path), "MSRUN_BIND_FILE_HASH": numa.sha256}
    return found


def _secure_channel(typed: Mapping[str, Any]) -> dict[str, str]:
    """What the flags say about TLS. No password is among them."""
    names = ("config_file_path", "client_password_file", "server_password_file")
    files: dict[str, Path] = {f"MS_{name.upper()}": typed[name] for name in names if name in typed}
    found = {name: str(path.absolute()) for name, path in files.items()}
    return {**found, **({"MS_ENABLE_SSL": "1"} if typed.get("enable_ssl") else {})}
