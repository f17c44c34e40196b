"""The command line of `recovery msrun`: msrun's flags (MindSpore 2.10 and its documents), checked before anything starts.

Every flag is one row of `FLAGS`. A name may be written with hyphens or underscores; torchrun's names stand where they mean the same.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from recovery.errors import SettingConflictError, SettingMissingError, SettingRangeError, SettingTypeError
from recovery.launch.bind_file import NUMBERS, PLACE, BindFile
from recovery.launch.bind_file import read as read_bind_file

_HOST = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?", re.ASCII)
_PORTS = range(1024, 65536)
_SIMULATIONS = range(4)
_STREAMS = ("0", "1", "2", "3")
_DIGITS_MAX = 12
"""More digits than any bound has: what is cut off is out of every range anyway."""
LOG_NAME_FIELDS = ("ip", "hostname")
"""What a --worker_log_name may hold in braces."""


class Restart(str, Enum):
    """What is started again after a failure."""

    AUTO = "auto"
    """By the script's imports."""
    WORKER = "worker"
    """The process that failed: the script uses recovery, and its survivors stay."""
    WORLD = "world"
    """All workers' programs, which load their own newest checkpoint."""


CpuBinding = bool | dict[str, list[str]]
"""Off, shared evenly, or processor lists by `scheduler` and `device<n>`."""


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """What one launcher was told."""

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
    max_restarts: int
    """Relaunches of one process within an hour."""
    task_script: str
    task_script_args: tuple[str, ...]


class Flag(NamedTuple):
    """One row."""

    name: str
    read: Callable[[str, str], Any]
    """From (flag, text as typed) to the value; raises a named error."""
    default: Any
    help: str
    aliases: tuple[str, ...] = ()


def _refuse(flag: str, text: object, rule: str, example: str) -> SettingRangeError:
    return SettingRangeError(
        field=f"--{flag}",
        value=text,
        rule=f"must be {rule}",
        next_step=f"Give, for example, --{flag}={example}.",
    )


def _whole(flag: str, text: str) -> int:
    try:
        return int(text[:_DIGITS_MAX])
    except ValueError:
        raise SettingTypeError(
            field=f"--{flag}",
            value=text,
            rule="must be a whole number",
            next_step=f"Give, for example, --{flag}=4.",
        ) from None


def _number(minimum: int, maximum: int | None, rule: str, example: str) -> Callable[[str, str], int]:
    """Read a whole number of a range."""

    def read(flag: str, text: str) -> int:
        value = _whole(flag, text)
        if value < minimum or (maximum is not None and value > maximum):
            raise _refuse(flag, text, rule, example)
        return value

    return read


def _switch(flag: str, text: str) -> bool:
    if text not in ("True", "False"):
        raise _refuse(flag, text, "True or False", "True")
    return text == "True"


def _host(flag: str, text: str) -> str:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        looks_like_an_address = re.fullmatch(r"[0-9.]+|.*:.*", text) is not None
        if looks_like_an_address or _HOST.fullmatch(text) is None:
            raise _refuse(
                flag, text, "an IPv4 address, an IPv6 address or a host name", "192.168.1.10"
            ) from None
        return text
    return bare


def _binding(flag: str, text: str) -> CpuBinding:
    if text in ("True", "False"):
        return text == "True"
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not given:
        example = '\'{"device0": ["0-3"]}\''
        raise _refuse(flag, text, "True, False or a JSON object", example)
    for place, cpus in given.items():
        if PLACE.fullmatch(place) is None:
            raise _refuse(
                flag, place, "an object whose keys are scheduler or device<n>", '\'{"device0": ["0-3"]}\''
            )
        listed = (
            isinstance(cpus, list)
            and cpus
            and all(isinstance(cpu, str) and NUMBERS.fullmatch(cpu) for cpu in cpus)
        )
        if not listed:
            raise _refuse(
                flag,
                f"{place}: {cpus}",
                'an object whose values are lists like ["0-3"], ["5"] or ["1,2"]',
                '\'{"device0": ["0-3"]}\'',
            )
    return given


def _numa_binding(flag: str, text: str) -> CpuBinding | BindFile:
    if text.lower().endswith(".json") or Path(text).is_file():
        return read_bind_file(Path(text))
    return _binding(flag, text)


def _tail(flag: str, text: str) -> tuple[int, ...] | None:
    if text == "-1":
        return None
    ranks = text.split(",")
    if not all(rank.isascii() and rank.isdigit() for rank in ranks):
        raise _refuse(flag, text, "-1 for all, or ranks with commas", "0,3")
    return tuple(int(rank) for rank in ranks)


def _tee(flag: str, text: str) -> tuple[int, ...] | None:
    """As torchrun reads it: which streams are shown, of all ranks or by rank. Both streams are in one log here, so any means all of it."""
    if text in _STREAMS:
        return None if text != "0" else ()
    places = [place.partition(":") for place in text.split(",")]
    if not all(rank.isascii() and rank.isdigit() and streams in _STREAMS for rank, _, streams in places):
        raise _refuse(flag, text, "0, 1, 2 or 3, or ranks with one of them", "0:3,1:3")
    return tuple(int(rank) for rank, _, streams in places if streams != "0")


def _restart(flag: str, text: str) -> Restart:
    try:
        return Restart(text)
    except ValueError:
        raise _refuse(flag, text, "auto, worker or world", "world") from None


def _log_name(flag: str, text: str) -> str:
    left = text
    for field in LOG_NAME_FIELDS:
        left = left.replace(f"{{{field}}}", "")
    if not text or "/" in text or "{" in left or "}" in left or not text.isprintable():
        raise _refuse(flag, text, "a file name that may hold {ip} and {hostname}", "worker_{hostname}")
    return text


def _path(flag: str, text: str) -> Path:
    if not text or "\0" in text:
        raise _refuse(flag, text, "a path", "logs")
    return Path(text)


FLAGS = (
    Flag("worker_num", _number(1, None, "greater than 0", "8"), 8, "workers of the whole job"),
    Flag(
        "local_worker_num",
        _number(1, None, "greater than 0", "8"),
        None,
        "workers to start on this host (all)",
        ("nproc_per_node",),
    ),
    Flag(
        "nnodes",
        _number(1, None, "greater than 0", "2"),
        None,
        "hosts, as torchrun counts: worker_num is nnodes x nproc_per_node",
    ),
    Flag("master_addr", _host, "127.0.0.1", "where the scheduler listens: IPv4, IPv6 or a host name"),
    Flag("master_port", _number(_PORTS.start, _PORTS[-1], "from 1024 to 65535", "8118"), 8118, "its port"),
    Flag(
        "node_rank",
        _number(-1, None, "0 or more, or -1 for automatic ranks", "0"),
        -1,
        "position of this host",
    ),
    Flag("log_dir", _path, Path(), "where logs go; made if absent"),
    Flag(
        "join",
        _switch,
        False,
        "True: stay, show logs, end with the job. False: hand over to an agent in the background",
    ),
    Flag(
        "cluster_time_out",
        _number(-(10**9), 10**9, "a number of seconds", "600"),
        600,
        "seconds to wait for all workers; negative: no limit",
    ),
    Flag("bind_core", _binding, False, "True, False or JSON: processors of each process"),
    Flag("bind_numa", _numa_binding, False, "True, False, JSON or a JSON file: memory nodes of each process"),
    Flag(
        "sim_level",
        _number(-1, _SIMULATIONS[-1], "from 0 to 3, or -1 for none", "1"),
        -1,
        "dry run of one rank, in one process",
    ),
    Flag(
        "sim_rank_id", _number(-1, None, "a rank, or -1 for rank 0", "0"), -1, "the rank of a dry run; -1: 0"
    ),
    Flag("rank_table_file", _path, None, "rank table (JSON), checked and handed on as RANK_TABLE_FILE"),
    Flag("worker_log_name", _log_name, "worker", "name of the workers' logs"),
    Flag("tail_worker_log", _tail, None, "ranks whose log is shown while joined; -1: all"),
    Flag("tee", _tee, None, "torchrun's way to say --tail_worker_log: 3, or 0:3,1:3"),
    Flag(
        "restart",
        _restart,
        Restart.AUTO,
        "what is started again after a failure: worker (the script uses recovery) or world (any other); auto: by its imports",
    ),
    Flag(
        "max_restarts", _number(0, 1000, "from 0 to 1000", "3"), 3, "relaunches of one process within an hour"
    ),
)


def parse(words: Sequence[str]) -> Arguments:
    """Read a command line.

    Args:
        words: without the command's own name.

    Raises:
        SettingTypeError: a value is of another type.
        SettingRangeError: a value is outside its range.
        SettingConflictError: two flags exclude each other.
        SettingMissingError: no script is named.
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
    return _joined(values, set(given), words_of_task)


def parser() -> argparse.ArgumentParser:
    """The parser behind `parse`, for --help and shell completion."""
    made = argparse.ArgumentParser(
        prog="recovery msrun",
        description="Start a job's processes on this host, watch them, bring the dead back.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,  # what is not given is absent, whatever a value may be
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
    made.add_argument(
        "task", nargs=argparse.REMAINDER, metavar="task_script [arguments]", help="what every process runs"
    )
    return made


def shown(default: object) -> str:
    """A default as it would be typed."""
    return default.value if isinstance(default, Enum) else str(default)


def _spellings(name: str) -> tuple[str, ...]:
    hyphens = name.replace("_", "-")
    return (name,) if hyphens == name else (name, hyphens)


def _reader(flag: Flag) -> Callable[[str], Any]:
    return lambda text: flag.read(flag.name, text)


def _joined(values: Mapping[str, Any], given: set[str], task: Sequence[str]) -> Arguments:
    """The rules that join several flags."""
    settled = dict(values)
    hosts = settled.pop("nnodes")
    if hosts is not None:
        if "worker_num" in given or settled["local_worker_num"] is None:
            raise SettingConflictError(
                field="--nnodes",
                value=hosts,
                rule="goes with --nproc_per_node, and without --worker_num, which it replaces",
                next_step="Give --nnodes and --nproc_per_node, or --worker_num and --local_worker_num.",
            )
        settled["worker_num"] = hosts * settled["local_worker_num"]
    shown = settled.pop("tee")
    if "tee" in given:
        if "tail_worker_log" in given:
            raise SettingConflictError(
                field="--tee",
                value=shown,
                rule="says the same as --tail_worker_log, which is given too",
                next_step="Give one of the two.",
            )
        settled["tail_worker_log"] = shown
    total = settled["worker_num"]
    if settled["local_worker_num"] is None:
        settled["local_worker_num"] = total
    local, node_rank = settled["local_worker_num"], settled["node_rank"]
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
    if settled["sim_rank_id"] >= total:
        raise SettingConflictError(
            field="--sim_rank_id",
            value=settled["sim_rank_id"],
            rule=f"there are {total} workers, so ranks end at {total - 1}",
            next_step="Give a rank that exists, or raise --worker_num.",
        )
    return Arguments(**settled, task_script=task[0], task_script_args=tuple(task[1:]))
