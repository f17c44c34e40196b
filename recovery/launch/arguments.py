"""The command line of `recovery msrun`: every flag is read, and what several flags say together is checked, before anything starts.

A flag's name may be written with hyphens or underscores.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from recovery.errors import SettingConflictError, SettingMissingError, UsageError
from recovery.launch.cpu_binding_file import BindFile
from recovery.launch.flag_values import CpuBinding, Rejoin, Restart, StartMethod
from recovery.launch.flags import FLAGS, Flag, shown

_SECRETS = {
    "password": "Write it into a file of mode 0600, and give --client_password_file or --server_password_file.",
    "client_password": "Write it into a file of mode 0600, and give --client_password_file.",
    "server_password": "Write it into a file of mode 0600, and give --server_password_file.",
    "job_token": "Set MS_JOB_TOKEN in the environment, or give the hosts of the job one MS_RECOVERY_PATH.",
}
"""Flags that somebody could expect, and that there are none of: with what is to be done instead."""


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed, read and checked."""

    worker_num: int
    """Workers of the whole job."""
    local_worker_num: int
    """Of them, on this host."""
    master_addr: str
    master_port: int
    node_rank: int
    """Position of this host, 0-based; -1: ranks are given by the scheduler."""
    log_dir: Path
    join: bool
    cluster_time_out: int
    """Seconds in which all workers must have come; negative: no limit."""
    bind_core: CpuBinding
    bind_numa: CpuBinding | BindFile
    sim_level: int
    """-1: no dry run."""
    sim_rank_id: int
    rank_table_file: Path | None
    worker_log_name: str
    tail_worker_log: tuple[int, ...] | None
    """Ranks whose log is shown while joined; None: all."""
    restart: Restart
    start_method: StartMethod
    max_restarts: int
    """Relaunches of one process within an hour."""
    rejoin: Rejoin
    enable_ssl: bool
    config_file_path: Path | None
    client_password_file: Path | None
    server_password_file: Path | None
    standby_num: int
    """Processes of this host that wait beside the workers, to take a lost one's rank."""
    task_script: str
    task_script_args: tuple[str, ...]


def parse(words: Sequence[str]) -> Arguments:
    """Read a command line.

    Args:
        words: without the command's own name.

    Raises:
        SettingTypeError: a value is of another type.
        SettingRangeError: a value is outside its range.
        SettingConflictError: two flags exclude each other.
        SettingMissingError: no script is named.
        UsageError: a password or token is among the words; it is not shown.
        SystemExit: an unknown flag (2), or --help (0).
    """
    given = vars(parser().parse_args(list(words)))
    words_of_task = given.pop("task", None)
    if not words_of_task:
        raise SettingMissingError(
            field="task_script",
            state="missing",
            rule="the script to start comes after the flags",
            next_step="Write, for example: recovery msrun --worker_num=4 train.py --epochs 10.",
        )
    values = {flag.name: given.get(flag.name, flag.default) for flag in FLAGS}
    script, *script_args = words_of_task
    arguments = Arguments(
        **_settled(values, set(given)), task_script=script, task_script_args=tuple(script_args)
    )
    _check(arguments)
    return arguments


def parser() -> argparse.ArgumentParser:
    """The parser behind `parse`, for --help and shell completion."""
    made = argparse.ArgumentParser(
        prog="recovery msrun",
        description="Start a job's processes on this host, watch them, restart those that die.",
        allow_abbrev=False,
        # What is not given is absent, whatever a value may be.
        argument_default=argparse.SUPPRESS,
    )
    for flag in FLAGS:
        names = [f"--{spelt}" for name in (flag.name, *flag.aliases) for spelt in _spellings(name)]
        made.add_argument(
            *names,
            dest=flag.name,
            type=_reader(flag),
            metavar="VALUE",
            help=f"{flag.help} ({shown(flag.default)})" if flag.default is not None else flag.help,
        )
    for name in _SECRETS:
        names = [f"--{spelt}" for spelt in _spellings(name)]
        made.add_argument(*names, nargs="?", const="", type=_refuser(name), help=argparse.SUPPRESS)
    made.add_argument(
        "task", nargs=argparse.REMAINDER, metavar="task_script [arguments]", help="what every process runs"
    )
    return made


def _spellings(name: str) -> tuple[str, ...]:
    hyphens = name.replace("_", "-")
    return (name,) if hyphens == name else (name, hyphens)


def _reader(flag: Flag) -> Callable[[str], Any]:
    return lambda text: flag.read(flag.name, text)


def _refuser(name: str) -> Callable[[str], Any]:
    """What is given is in the list of processes by now, and need not be in a log as well."""

    def refuse(_: str) -> NoReturn:
        raise UsageError(
            field=f"--{name}",
            reason="every user of this host can read the arguments of a process, so no secret is taken from there",
            next_step=_SECRETS[name],
        )

    return refuse


def _settled(values: Mapping[str, Any], given: set[str]) -> dict[str, Any]:
    """The values under msrun's own names: torchrun's `--nnodes` and `--tee` become what they say.

    Raises:
        SettingConflictError: a name and its other spelling are both given.
    """
    settled = dict(values)
    hosts, streams = settled.pop("nnodes"), settled.pop("tee")
    if hosts is not None:
        if "worker_num" in given or settled["local_worker_num"] is None:
            raise SettingConflictError(
                field="--nnodes",
                value=hosts,
                rule="goes with --nproc_per_node, and without --worker_num, which it replaces",
                next_step="Give --nnodes and --nproc_per_node, or --worker_num and --local_worker_num.",
            )
        settled["worker_num"] = hosts * settled["local_worker_num"]
    if "tee" in given:
        if "tail_worker_log" in given:
            raise SettingConflictError(
                field="--tee",
                value=streams,
                rule="says the same as --tail_worker_log, which is given too",
                next_step="Give one of the two.",
            )
        settled["tail_worker_log"] = streams
    if settled["local_worker_num"] is None:
        settled["local_worker_num"] = settled["worker_num"]
    return settled


def _check(arguments: Arguments) -> None:
    """What several flags say together.

    Raises:
        SettingConflictError: two of them exclude each other.
    """
    total, local, node_rank = arguments.worker_num, arguments.local_worker_num, arguments.node_rank
    if local > total:
        raise SettingConflictError(
            field="--local_worker_num",
            value=local,
            rule=f"is more than --worker_num={total}, the workers of all hosts together",
            next_step="Lower it, or raise --worker_num.",
        )
    if node_rank >= 0 and (node_rank + 1) * local > total and local < total:
        raise SettingConflictError(
            field="--node_rank",
            value=node_rank,
            rule=f"its ranks would be {node_rank * local} to {(node_rank + 1) * local - 1}, but there are {total} workers",
            next_step="Give --node_rank=-1 where hosts have different numbers of workers.",
        )
    if arguments.sim_rank_id >= total:
        raise SettingConflictError(
            field="--sim_rank_id",
            value=arguments.sim_rank_id,
            rule=f"there are {total} workers, so ranks end at {total - 1}",
            next_step="Give a rank that exists, or raise --worker_num.",
        )
    if arguments.standby_num and arguments.sim_level >= 0:
        raise SettingConflictError(
            field="--standby_num",
            value=arguments.standby_num,
            rule="is for a job whose workers may be lost, and --sim_level asks for a dry run of one process",
            next_step="Leave one of the two out.",
        )
