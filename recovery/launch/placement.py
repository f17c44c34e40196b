"""Which processes run where with which environment: from the job to the processes of one host. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

import msgspec

from recovery.core.ids import NodeId
from recovery.frameworks import FRAMEWORKS, Framework, forming_worlds
from recovery.launch.job_spec import Host, JobSpec, Rejoin

INTERPRETERS = ("python", "python3")
PROGRAMS = (*INTERPRETERS, "pytest")
"""A task_script of one of these names is the program itself; anything else is a Python script."""

_OURS = (
    "MS_ROLE",
    "MS_NODE_ID",
    "RANK_ID",
    "DEVICE_ID",
    "RANK_SIZE",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MS_SIMULATION_LEVEL",
    "RANK_TABLE_FILE",
    "MS_RESUME_TOKEN",
    "MS_RESUME_HANGS",
    "MS_STANDBY",
    "MS_REPLACES",
    "MS_FINISHED_FILE",
)
"""Never handed from the launcher's own environment or one child's to another: each process gets its own, or none."""

OF_ONE = (
    "MS_NODE_ID",
    "RANK_ID",
    "RANK",
    "DEVICE_ID",
    "LOCAL_RANK",
    "ROLE_RANK",
    "TORCHELASTIC_RESTART_COUNT",
)
"""What says which worker a process is, and which start of it."""

OF_ONE_WORLD = (
    "MASTER_ADDR",
    "MASTER_PORT",
    *(name for framework in FRAMEWORKS for name in framework.world_variables),
)
"""What a worker proxy sets for its program, for each world again."""

_ONE_HASH_SEED = {"PYTHONHASHSEED": "0"}
"""Sets of texts have the same order in every start of a rank, on every host, after a restart of the launcher too."""

_PORT_MAX = 65535


class ProcessKind(str, Enum):
    """What a process of this host is."""

    SCHEDULER = "scheduler"
    WORKER = "worker"
    STANDBY = "standby"
    """It holds no rank until one is lost."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the program before it runs."""

    supervised: bool
    """It knows nothing of recovery: a worker proxy registers instead, and a failure restarts the programs of the whole world."""
    world_of: str
    """The framework that forms its world in a way of its own; empty: torchrun's variables form it."""


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """One process to start."""

    name: str
    """`scheduler`, `worker_<rank>` (`worker_<local index>` while ranks are automatic) or `standby_<n>`: also of its log."""
    kind: ProcessKind
    node_id: NodeId
    """Of its first start; later ones may have another (node_ids.py)."""
    rank: int | None
    """None: the scheduler, a standby, or a worker whose rank the scheduler will give."""
    local_index: int
    """Among this host's workers, 0-based, standbys behind them; 0 for the scheduler."""
    command: tuple[str, ...]
    variables: dict[str, str]
    cpus: tuple[int, ...]
    """Processors it may use; none: all."""
    defaults: dict[str, str] = {}
    """Variables that it gets where the launcher's own environment has none of that name."""


def place(spec: JobSpec, host: Host, script: Script) -> tuple[Placed, ...]:
    """The processes of a host, the scheduler first. It is a program of its own, so it imports no framework.

    Raises:
        SettingError: a process is bound to what the host does not have.
    """
    simulates = spec.dry_run is not None
    workers = 1 if simulates else spec.local_worker_num
    if spec.is_spare:
        return tuple(_standby(spec, index, host, script) for index in range(workers + spec.standby_num))
    placed = tuple(_worker(spec, index, host, script) for index in range(workers))
    if simulates:
        return placed
    placed += tuple(_standby(spec, index, host, script) for index in range(spec.standby_num))
    return (_scheduler(spec, host), *placed) if host.owns_master_addr else placed


def own_directory(spec: JobSpec, host: Host) -> Path:
    """Where this host's launcher writes what another one of the job would write under the same name: `--log_dir` of the scheduler's host.

    Several hosts may work in one directory of a file server. Their addresses tell them apart; copied machines have one host name.
    """
    is_alone = spec.is_on_one_host or spec.dry_run is not None
    return spec.log_dir if is_alone or host.owns_master_addr else spec.log_dir / _name_of(host.address)


def environment_of(
    placed: Placed, base: Mapping[str, str], *, restarts: int, named: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The whole environment of one start of a process.

    Args:
        placed: which.
        base: the launcher's own.
        restarts: how often it was started before.
        named: what this start's node id says; None: the process has the id that it was placed with.
    """
    inherited = {name: value for name, value in base.items() if name not in _OURS}
    counted = {} if placed.kind is ProcessKind.SCHEDULER else {"TORCHELASTIC_RESTART_COUNT": str(restarts)}
    return {**placed.defaults, **inherited, **placed.variables, **(named or {}), **counted}


def environment_of_all(placed: Sequence[Placed], base: Mapping[str, str]) -> dict[str, str]:
    """What the environments of several workers have in common at every start of each; nothing of it says which one a process is.

    Args:
        placed: which; at least one.
        base: the launcher's own.
    """
    first, *others = (environment_of(process, base, restarts=0) for process in placed)
    return {
        name: value
        for name, value in first.items()
        if name not in OF_ONE and all(other.get(name) == value for other in others)
    }


def _scheduler(spec: JobSpec, host: Host) -> Placed:
    bound = spec.bind("scheduler", 0, host)
    return Placed(
        name="scheduler",
        kind=ProcessKind.SCHEDULER,
        node_id=NodeId("sched"),
        rank=None,
        local_index=0,
        command=(*bound.prefix, host.interpreter, "-m", "recovery", "scheduler"),
        variables={**_shared(spec), "MS_ROLE": "MS_SCHED", "MS_NODE_ID": "sched"},
        cpus=bound.cpus,
        defaults={"MS_STANDBY_NUM": str(spec.waiting_num)} if spec.waiting_num else {},
    )


def _worker(spec: JobSpec, index: int, host: Host, script: Script) -> Placed:
    rank = _rank(spec, index)
    ranked = {} if rank is None else {"RANK_ID": str(rank), "RANK": str(rank)}
    if spec.typed_as == "run" and rank is not None:
        # There is one role.
        ranked["ROLE_RANK"] = str(rank)
    variables = {
        **_shared(spec),
        **_shared_of_workers(spec),
        **ranked,
        "DEVICE_ID": str(index),
        "LOCAL_RANK": str(index),
    }
    node_id = NodeId(f"{_name_of(host.address)}_{index}" if rank is None else str(rank))
    if spec.dry_run is None:
        variables |= {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": node_id}
    bound = spec.bind(f"device{index}", index, host)
    name = spec.worker_log_name.replace("{hostname}", host.name).replace("{ip}", host.address)
    return Placed(
        name=f"{name}_{index if rank is None else rank}",
        kind=ProcessKind.WORKER,
        node_id=node_id,
        rank=rank,
        local_index=index,
        command=(*bound.prefix, *_program(spec, host, script)),
        variables=variables,
        cpus=bound.cpus,
        defaults=_ONE_HASH_SEED,
    )


def _standby(spec: JobSpec, index: int, host: Host, script: Script) -> Placed:
    """Like a worker, without a rank, a device and processors of its own: it gets to know them with the rank that it takes."""
    number = max(0, spec.node_rank) * spec.standby_num + index
    if spec.is_spare:
        number += (spec.node_rank - spec.host_count) * spec.local_worker_num
    numbered = spec.node_rank >= 0 or spec.is_on_one_host
    node_id = NodeId(f"standby_{number}" if numbered else f"{_name_of(host.address)}_standby_{number}")
    return Placed(
        name=f"standby_{number}",
        kind=ProcessKind.STANDBY,
        node_id=node_id,
        rank=None,
        local_index=index if spec.is_spare else spec.local_worker_num + index,
        command=_program(spec, host, script),
        variables={
            **_shared(spec),
            **_shared_of_workers(spec),
            "MS_ROLE": "MS_WORKER",
            "MS_NODE_ID": node_id,
            "MS_STANDBY": "1",
        },
        cpus=(),
        defaults={**_ONE_HASH_SEED, **_threads_of_workers(spec, host)},
    )


def _threads_of_workers(spec: JobSpec, host: Host) -> dict[str, str]:
    """A standby may use all processors; libraries would start more threads for it than for the worker whose rank it takes, and add otherwise.

    Nothing where the workers are not bound, or not all to as many.
    """
    counts = {len(spec.bind(f"device{index}", index, host).cpus) for index in range(spec.local_worker_num)}
    return {"OMP_NUM_THREADS": str(*counts)} if len(counts) == 1 and 0 not in counts else {}


def taker(spec: JobSpec, host: Host, script: Script, rank: int, holder: NodeId) -> Placed:
    """The process that takes over a lost rank of another host. It is a standby until it has it."""
    here = str(spec.node_rank) if spec.node_rank >= 0 else _name_of(host.address)
    like = _standby(spec, 0, host, script)
    node_id = NodeId(f"takeover_{rank}_by_{here}")
    unlike = {"MS_NODE_ID": node_id, "MS_REPLACES": holder, "MS_STANDBY": ""}
    variables = {name: value for name, value in {**like.variables, **unlike}.items() if value}
    return msgspec.structs.replace(like, name=f"takeover_{rank}", node_id=node_id, variables=variables)


def _program(spec: JobSpec, host: Host, script: Script) -> tuple[str, ...]:
    program = program_of(spec, host.interpreter)
    if not script.supervised or spec.dry_run is not None:
        return program
    world = (f"--{script.world_of}",) if script.world_of else ()
    return (host.interpreter, "-m", "recovery.launch.worker_proxy", *world, *program)


def named_first(words: Sequence[str]) -> tuple[Framework | None, Sequence[str]]:
    """Take the framework of the world apart from a worker proxy's command.

    Args:
        words: behind the proxy's module.

    Returns:
        The framework that forms its program's world in a way of its own, None: torchrun's variables do; and the program's words.
    """
    framework = forming_worlds().get(words[0].removeprefix("--")) if words[0].startswith("--") else None
    return framework, words if framework is None else words[1:]


def program_of(spec: JobSpec, interpreter: str) -> tuple[str, ...]:
    """The task as it is started."""
    task, *rest = spec.task
    if task in INTERPRETERS:
        return (interpreter, *rest)
    if task in PROGRAMS:
        return (interpreter, "-m", task, *rest)
    return (interpreter, task, *rest)


def _shared(spec: JobSpec) -> dict[str, str]:
    if spec.dry_run is not None:
        return {
            "MS_SIMULATION_LEVEL": str(spec.dry_run.level),
            "RANK_SIZE": str(spec.worker_num),
            **spec.variables,
        }
    return {
        "MS_WORKER_NUM": str(spec.worker_num),
        "MS_SCHED_HOST": spec.master_addr,
        "MS_SCHED_PORT": str(spec.master_port),
        "MS_TOPO_TIMEOUT": str(spec.cluster_time_out),
        "RANK_SIZE": str(spec.worker_num),
        **({"MS_REJOIN": "proof"} if spec.rejoin is Rejoin.PROOF else {}),
        **spec.variables,
    }


def _shared_of_workers(spec: JobSpec) -> dict[str, str]:
    port = spec.master_port
    return {
        **spec.worker_variables,
        "LOCAL_WORLD_SIZE": str(spec.local_worker_num),
        "WORLD_SIZE": str(spec.worker_num),
        "MASTER_ADDR": spec.master_addr,
        # The scheduler listens on the port itself.
        "MASTER_PORT": str(port + 1 if port < _PORT_MAX else port - 1),
    }


def _name_of(address: str) -> str:
    """An address as part of a node id, which holds no colons."""
    return address.replace(":", "-").strip("-")


def _rank(spec: JobSpec, index: int) -> int | None:
    """By position where that is known; None: the scheduler gives one."""
    if spec.dry_run is not None:
        return spec.dry_run.rank
    if spec.is_on_one_host:
        return index
    return spec.node_rank * spec.local_worker_num + index if spec.node_rank >= 0 else None
