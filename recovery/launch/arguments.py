"""What `recovery msrun` is told: msrun's own flags (MindSpore 2.10 and its documents), and torchrun's names where they mean the same.

Each flag is a field of `Arguments`, and an option of the command (recovery/cli/msrun.py). What several flags say together is checked
here, before anything starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from recovery.errors import SettingError
from recovery.launch import flag_values as values
from recovery.launch.cpu_binding_file import BindFile
from recovery.launch.flag_values import CpuBinding, Rejoin, Restart, StartMethod

_WORKERS = 8
_count = values.number(1, None, "greater than 0", "8")


class Flag(NamedTuple):
    """How a field is typed."""

    read: Callable[[str, str], Any]
    """From (flag, text as typed) to the value; raises a named error."""
    help: str
    aliases: tuple[str, ...] = ()


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed, read and checked. A field without a `Flag` is no flag."""

    worker_num: Annotated[int, Flag(_count, "workers of the whole job")] = _WORKERS
    local_worker_num: Annotated[
        int,
        Flag(_count, "workers to start on this host (all): torchrun's --nproc_per_node", ("nproc_per_node",)),
    ]
    nnodes: Annotated[
        int | None,
        Flag(
            values.number(1, None, "greater than 0", "2"),
            "hosts, as torchrun counts: worker_num is nnodes x nproc_per_node",
        ),
    ] = None
    master_addr: Annotated[
        str, Flag(values.host, "where the scheduler listens: IPv4, IPv6 or a host name")
    ] = "127.0.0.1"
    master_port: Annotated[
        int, Flag(values.number(1024, 65535, "from 1024 to 65535", "8118"), "its port")
    ] = 8118
    node_rank: Annotated[
        int,
        Flag(values.number(-1, None, "0 or more, or -1 for automatic ranks", "0"), "position of this host"),
    ] = -1
    log_dir: Annotated[Path, Flag(values.path, "where logs go; made if absent")] = Path()
    join: Annotated[
        bool,
        Flag(
            values.switch,
            "True: stay, show logs, end with the job. False: hand over to an agent in the background",
        ),
    ] = False
    cluster_time_out: Annotated[
        int,
        Flag(
            values.number(-(10**9), 10**9, "a number of seconds", "600"),
            "seconds to wait for all workers; negative: no limit",
        ),
    ] = 600
    bind_core: Annotated[
        CpuBinding, Flag(values.binding, "True, False or JSON: processors of each process")
    ] = False
    bind_numa: Annotated[
        CpuBinding | BindFile,
        Flag(values.numa_binding, "True, False, JSON or a JSON file: memory nodes of each process"),
    ] = False
    sim_level: Annotated[
        int,
        Flag(
            values.number(-1, 3, "from 0 to 3, or -1 for none", "1"),
            "dry run of one rank, in one process",
        ),
    ] = -1
    sim_rank_id: Annotated[
        int, Flag(values.number(-1, None, "a rank, or -1 for rank 0", "0"), "the rank of a dry run; -1: 0")
    ] = -1
    rank_table_file: Annotated[
        Path | None, Flag(values.path, "rank table (JSON), checked and handed on as RANK_TABLE_FILE")
    ] = None
    worker_log_name: Annotated[str, Flag(values.log_name, "name of the workers' logs")] = "worker"
    tail_worker_log: Annotated[
        tuple[int, ...] | None, Flag(values.tail, "ranks whose log is shown while joined; -1: all")
    ] = None
    tee: Annotated[
        tuple[int, ...] | None,
        Flag(values.tee, "torchrun's way to say --tail_worker_log: 3, or 0:3,1:3"),
    ] = None
    restart: Annotated[
        Restart,
        Flag(
            values.one_of(Restart, "world"),
            "what is started again after a failure: worker (the script uses recovery) or world (any other); auto: by its imports",
        ),
    ] = Restart.AUTO
    start_method: Annotated[
        StartMethod,
        Flag(
            values.one_of(StartMethod, "spawn"),
            "how workers begin: fork (of one process that has imported what they need), spawn (each imports by itself); "
            "auto: fork where it is safe",
        ),
    ] = StartMethod.AUTO
    max_restarts: Annotated[
        int,
        Flag(values.number(0, 1000, "from 0 to 1000", "3"), "relaunches of one process within an hour"),
    ] = 3
    signals_to_handle: Annotated[
        tuple[int, ...],
        Flag(
            values.signals,
            "further signals that ask the job to stop, as SIGTERM, SIGINT, SIGQUIT and SIGHUP do (SIGUSR1,SIGUSR2)",
        ),
    ] = ()
    rejoin: Annotated[
        Rejoin,
        Flag(
            values.one_of(Rejoin, "new"),
            "who takes a lost worker's rank: new (its next process, at once, under a fresh node id), same (the same id, when MS_REJOIN_WINDOW is over) or proof (the same id, as soon as the process before it is known to be dead)",
        ),
    ] = Rejoin.NEW
    enable_ssl: Annotated[
        bool,
        Flag(
            values.switch,
            "True: all processes of the job speak TLS (MS_ENABLE_SSL=1), and this launcher with them",
        ),
    ] = False
    config_file_path: Annotated[
        Path | None,
        Flag(
            values.path,
            "config.json of the secure channel (MS_CONFIG_FILE_PATH); `recovery certs init DIR` makes one",
        ),
    ] = None
    client_password_file: Annotated[
        Path | None,
        Flag(
            values.path,
            "0600 file with the password of client_cert_path (MS_CLIENT_PASSWORD_FILE); a password itself is taken by no flag",
        ),
    ] = None
    server_password_file: Annotated[
        Path | None,
        Flag(values.path, "0600 file with the password of server_cert_path (MS_SERVER_PASSWORD_FILE)"),
    ] = None
    standby_num: Annotated[
        int,
        Flag(
            values.number(0, 1000, "from 0 to 1000", "1"),
            "processes to start on this host beside the workers, which wait and take the rank of a worker that is lost",
        ),
    ] = 0
    progress: Annotated[
        bool,
        Flag(
            values.switch,
            "False: no line below the others on a terminal that says how far training is, or what a recovery waits for",
        ),
    ] = True
    continue_run: Annotated[
        bool | None,
        Flag(
            values.switch,
            "what a start on the path of a finished job does: True: its run goes on from its last checkpoint, to a later end; "
            "False: its next run begins at step 0 (MS_CONTINUE)",
            ("continue",),
        ),
    ] = None
    torchelastic_run_id: str = ""
    """The line was torchrun's: the workers get torchelastic's variables, this one among them. Empty: it was msrun's."""
    torchelastic_role: str = ""
    """For ROLE_NAME, where the line was torchrun's."""
    worker_num_is_default: bool = False
    """Nobody has said how many workers the whole job has."""
    task_script: str
    task_script_args: tuple[str, ...]

    @classmethod
    def of(cls, typed: Mapping[str, Any], task: Sequence[str]) -> Arguments:
        """What was typed, checked, with what follows from it.

        Args:
            typed: the flags that were given, with their values.
            task: the script and its arguments.

        Raises:
            SettingError: no script is named; two flags exclude each other.
        """
        if not task:
            raise SettingError(
                "SETTING_MISSING",
                field="task_script",
                state="missing",
                rule="the script to start comes after the flags",
                next_step="Write, for example: recovery msrun --worker_num=4 train.py --epochs 10.",
            )
        script, *script_args = task
        arguments = cls(**_settled(typed), task_script=script, task_script_args=tuple(script_args))
        _check(arguments)
        return arguments


def _settled(typed: Mapping[str, Any]) -> dict[str, Any]:
    """The same under msrun's own names: torchrun's `--nnodes` and `--tee` become what they say.

    Raises:
        SettingError: a name and its other spelling are both given.
    """
    is_default = not {"worker_num", "nnodes"} & set(typed)
    fields = {"worker_num": _WORKERS, **typed, "worker_num_is_default": is_default}
    if "nnodes" in typed:
        if "worker_num" in typed or "local_worker_num" not in typed:
            raise SettingError(
                "SETTING_CONFLICT",
                field="--nnodes",
                value=typed["nnodes"],
                rule="goes with --nproc_per_node, and without --worker_num, which it replaces",
                next_step="Give --nnodes and --nproc_per_node, or --worker_num and --local_worker_num.",
            )
        fields["worker_num"] = typed["nnodes"] * typed["local_worker_num"]
    if "tee" in typed:
        if "tail_worker_log" in typed:
            raise SettingError(
                "SETTING_CONFLICT",
                field="--tee",
                value=typed["tee"],
                rule="says the same as --tail_worker_log, which is given too",
                next_step="Give one of the two.",
            )
        fields["tail_worker_log"] = typed["tee"]
    fields.setdefault("local_worker_num", fields["worker_num"])
    return fields


def _check(arguments: Arguments) -> None:
    """What several flags say together.

    Raises:
        SettingError: two of them exclude each other.
    """
    total, local, node_rank = arguments.worker_num, arguments.local_worker_num, arguments.node_rank
    if local > total:
        raise SettingError(
            "SETTING_CONFLICT",
            field="--local_worker_num",
            value=local,
            rule=f"is more than --worker_num={total}, the workers of all hosts together",
            next_step="Lower it, or raise --worker_num.",
        )
    if node_rank >= 0 and (node_rank + 1) * local > total and local < total:
        raise SettingError(
            "SETTING_CONFLICT",
            field="--node_rank",
            value=node_rank,
            rule=f"its ranks would be {node_rank * local} to {(node_rank + 1) * local - 1}, but there are {total} workers",
            next_step="Give --node_rank=-1 where hosts have different numbers of workers.",
        )
    if arguments.sim_rank_id >= total:
        raise SettingError(
            "SETTING_CONFLICT",
            field="--sim_rank_id",
            value=arguments.sim_rank_id,
            rule=f"there are {total} workers, so ranks end at {total - 1}",
            next_step="Give a rank that exists, or raise --worker_num.",
        )
    if arguments.standby_num and arguments.sim_level >= 0:
        raise SettingError(
            "SETTING_CONFLICT",
            field="--standby_num",
            value=arguments.standby_num,
            rule="is for a job whose workers may be lost, and --sim_level asks for a dry run of one process",
            next_step="Leave one of the two out.",
        )
