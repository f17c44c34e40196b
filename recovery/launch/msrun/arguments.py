"""What `recovery msrun` is told: msrun's own flags (MindSpore 2.10 and its documents), and torchrun's names where they mean the same.

Each flag is a field of `Arguments`, and an option of the command (recovery/cli/msrun.py). `Arguments.job_spec` says it in the launcher's
words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from recovery.errors import SettingError
from recovery.launch import flag_values as values
from recovery.launch.flag_values import Flag
from recovery.launch.job_spec import DryRun, JobSpec, Rejoin, Restart, StartMethod
from recovery.launch.msrun.binding_file import BindFile
from recovery.launch.msrun.bindings import Bindings, CpuBinding, read_binding, read_numa_binding

_WORKERS = 8


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed, read and checked. A field without a `Flag` is no flag."""

    worker_num: Annotated[int, Flag(values.count, "workers of the whole job")] = _WORKERS
    local_worker_num: Annotated[
        int,
        Flag(
            values.count,
            "workers to start on this host (all): torchrun's --nproc_per_node",
            ("nproc_per_node",),
        ),
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
    master_port: Annotated[int, Flag(values.port, "its port")] = 8118
    node_rank: Annotated[
        int,
        Flag(values.node_rank, "position of this host"),
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
            values.seconds,
            "seconds to wait for all workers; negative: no limit",
        ),
    ] = 600
    bind_core: Annotated[
        CpuBinding, Flag(read_binding, "True, False or JSON: processors of each process")
    ] = False
    bind_numa: Annotated[
        CpuBinding | BindFile,
        Flag(read_numa_binding, "True, False, JSON or a JSON file: memory nodes of each process"),
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
        Flag(values.max_restarts, "relaunches of one process within an hour"),
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
            values.standby_num,
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
    worker_num_is_default: bool = False
    """Nobody has said how many workers the whole job has."""
    task: tuple[str, ...]
    """The script and its arguments."""

    @classmethod
    def of(cls, typed: Mapping[str, Any], task: Sequence[str]) -> Arguments:
        """What was typed, under msrun's own names.

        Args:
            typed: the flags that were given, with their values.
            task: the script and its arguments.

        Raises:
            SettingError: a name and its other spelling are both given.
        """
        return cls(**_settled(typed), task=tuple(task))

    def job_spec(self) -> JobSpec:
        """The same in the launcher's own words.

        Raises:
            SettingError: no script is named; two flags exclude each other.
        """
        if self.sim_rank_id >= self.worker_num:
            raise SettingError(
                "SETTING_CONFLICT",
                field="--sim_rank_id",
                value=self.sim_rank_id,
                rule=f"there are {self.worker_num} workers, so ranks end at {self.worker_num - 1}",
                next_step="Give a rank that exists, or raise --worker_num.",
            )
        simulates = self.sim_level >= 0
        same = {name: getattr(self, name) for name in _IN_BOTH}
        return JobSpec(
            typed_as="msrun",
            bind=Bindings(core=self.bind_core, numa=self.bind_numa, workers=self.local_worker_num),
            variables={**({} if simulates else self._secure_channel()), **self._named_files()},
            dry_run=DryRun(self.sim_level, max(0, self.sim_rank_id)) if simulates else None,
            **same,
        )

    def _named_files(self) -> dict[str, str]:
        found = {} if self.rank_table_file is None else {"RANK_TABLE_FILE": str(self.rank_table_file)}
        if isinstance(self.bind_numa, BindFile):
            found |= {
                "MSRUN_BIND_FILE": str(self.bind_numa.path),
                "MSRUN_BIND_FILE_HASH": self.bind_numa.sha256,
            }
        return found

    def _secure_channel(self) -> dict[str, str]:
        """What the flags say about TLS. No password is among them."""
        files = {
            "MS_CONFIG_FILE_PATH": self.config_file_path,
            "MS_CLIENT_PASSWORD_FILE": self.client_password_file,
            "MS_SERVER_PASSWORD_FILE": self.server_password_file,
        }
        found = {name: str(path.absolute()) for name, path in files.items() if path is not None}
        return {**found, **({"MS_ENABLE_SSL": "1"} if self.enable_ssl else {})}


_IN_BOTH = {each.name for each in msgspec.structs.fields(Arguments)} & set(JobSpec.__struct_fields__)
"""What a field of either means."""


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
            raise values.said_twice("tee", "tail_worker_log", typed["tee"])
        fields["tail_worker_log"] = typed["tee"]
    fields.setdefault("local_worker_num", fields["worker_num"])
    return fields
