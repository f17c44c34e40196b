"""torchrun's command line, as torch 2.13 documents it (`torchrun --help`), in the launcher's own words. Pure.

One table: what a flag of torchrun's becomes here. A flag that would change what a job does and has no counterpart is refused by name; one
that asks for what the launcher does by itself is taken, and it is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from recovery.config import slurm_allocation as slurm
from recovery.errors import SettingError
from recovery.launch import flag_values as values
from recovery.launch.job_spec import JobSpec

FLAGS = {
    "nnodes": values.Flag(help="hosts of the job (1); N:N, but no other range"),
    "nproc_per_node": values.Flag(help="workers of this host (1), or auto, gpu, xpu, cpu"),
    "rdzv_backend": values.Flag(help="c10d or static: the scheduler brings the workers together"),
    "rdzv_endpoint": values.Flag(
        help="HOST[:PORT] where the scheduler listens; port 0: a free one, for one host"
    ),
    "rdzv_id": values.Flag(help="name of the job, for TORCHELASTIC_RUN_ID"),
    "rdzv_conf": values.Flag(
        help="timeout=SECONDS or join_timeout=SECONDS: how long to wait for all workers"
    ),
    "max_restarts": values.Flag(
        values.max_restarts, "relaunches of one process within an hour (3)", field="max_restarts"
    ),
    "node_rank": values.Flag(values.node_rank, "position of this host", field="node_rank"),
    "master_addr": values.Flag(help="where the scheduler listens (127.0.0.1)"),
    "master_port": values.Flag(help="its port (8118)"),
    "local_addr": values.Flag(help="address on which other hosts reach this one's workers"),
    "role": values.Flag(help="for ROLE_NAME"),
    "log_dir": values.Flag(values.path, "where logs go (logs)", field="log_dir"),
    "tee": values.Flag(values.tee, "streams that are shown: 3, or 0:3,1:3", field="tail_worker_log"),
    "local_ranks_filter": values.Flag(values.tail, "ranks whose log is shown", field="tail_worker_log"),
    "signals_to_handle": values.Flag(
        values.signals,
        "further signals that ask the job to stop, as SIGTERM does: SIGUSR1,SIGUSR2",
        field="signals_to_handle",
    ),
    "standbys": values.Flag(
        values.standby_num,
        "processes of this host that wait beside the workers, and take the rank of one that is lost (0)",
        field="standby_num",
    ),
    "spares": values.Flag(
        values.standby_num,
        "hosts beyond --nnodes that wait, and whose processes take the ranks of a host that is lost; the same on every host (0)",
        field="spare_hosts",
    ),
    "progress": values.Flag(
        values.switch,
        "False: no line below the others on a terminal that says how far training is (as of `recovery msrun`)",
        field="progress",
    ),
}
"""Those that take a value and mean something here. One without a reader is read with others. The last three are ours, not torchrun's."""

RENDEZVOUS_PORT = 29400
"""Of an endpoint that names none, as torchrun has it."""
_BACKENDS = ("c10d", "static")

WITHOUT_EFFECT = {
    "monitor_interval": "an end of a process is seen at once",
    "redirects": "every process has a log file of its own",
    "start_method": "it is torch.multiprocessing's, and a script is started as a program",
    "rdzv_backend": "the scheduler brings the workers together",
}
"""Flags that are taken and change nothing, with the reason."""

REFUSED = {
    "no_python": "Start the program by a Python script, or by `recovery msrun python -m MODULE`.",
    "run_path": "Give the script itself.",
    "logs_specs": "Give --log_dir; each process writes one file there.",
    "event_log_handler": "`recovery events` and `recovery export` give the job's events.",
    "numa_binding": "Give --bind_numa to `recovery msrun`.",
    "virtual_local_rank": "Leave it out: every worker sees all devices of its host, and its own LOCAL_RANK.",
    "duplicate_stdout_filters": "Give --log_dir, and search its files.",
    "duplicate_stderr_filters": "Give --log_dir, and search its files.",
}
"""Flags that have no counterpart, with what is to be done instead."""


class Machine(NamedTuple):
    """What the line may ask of the host."""

    processors: int
    devices: Callable[[str], int]
    """How many the framework sees: of `gpu`, of `xpu`, or of `auto`, which is whatever accelerator there is."""
    free_port: int
    """Of the loopback address."""
    environment: Mapping[str, str] = {}
    """torchrun's defaults stand there as PET_NNODES and its like, and as PYTHON_EXEC; what Slurm says of its step as SLURM_STEP_ID and its like."""
    address_of: Callable[[str], str] = str
    """Where other hosts reach a host of Slurm's, by its name."""


class Line(NamedTuple):
    """What a line says."""

    spec: JobSpec
    notes: tuple[str, ...]
    """For people: what was taken and changes nothing."""


def read(given: Mapping[str, Any], task: Sequence[str], machine: Machine) -> Line:
    """Read what was typed.

    Args:
        given: by flag with underscores, as text, or True for a flag that takes no value; only what was typed.
        task: the script, or the module's name behind `-m`, with its arguments.
        machine: of this host.

    Raises:
        SettingError: a flag has no counterpart, or a value is not of its kind.
    """
    defaults = _defaults(machine.environment)
    # One way of naming the place wins over a default of another.
    meets = {"standalone", "rdzv_endpoint", "master_addr", "master_port"}
    unasked = meets if meets & set(given) else set()
    given = {**{name: value for name, value in defaults.items() if name not in unasked}, **given}
    placed, of_slurm = _placed_by_slurm(given, machine)
    given = {**placed, **given}
    for name, instead in REFUSED.items():
        if name in given:
            raise _refuse(name, given[name], "is torchrun's, and has no counterpart here", instead)
    hosts, workers = _hosts(given.get("nnodes", "1")), _workers(given.get("nproc_per_node", "1"), machine)
    fields = {**_meeting(given, machine), **_as_they_are(given)}
    interpreter = machine.environment.get("PYTHON_EXEC", "")
    words = (interpreter or "python", "-m", *task) if given.get("module") else tuple(task)
    if interpreter and not given.get("module"):
        words = (interpreter, *task)
    notes = [f"--{name} has no effect: {why}" for name, why in WITHOUT_EFFECT.items() if name in given]
    taken = [f"{_PREFIX}{name.upper()}={defaults[name]}" for name in defaults if name not in unasked]
    if taken:
        notes.insert(0, f"taken from the environment, as torchrun does: {', '.join(taken)}")
    notes += of_slurm
    address = given.get("local_addr", "")
    spec = JobSpec(
        typed_as="run",
        task=words,
        worker_num=hosts * workers,
        local_worker_num=workers,
        join=True,
        log_dir=fields.pop("log_dir", Path("logs")),
        variables={"MS_WORKER_IP": address} if address else {},
        **fields,
    )
    spec = msgspec.structs.replace(spec, worker_variables=_torchelastic(given, spec, hosts))
    return Line(spec, (*notes, *_unknown_conf(given)))


def _torchelastic(given: Mapping[str, Any], spec: JobSpec, hosts: int) -> dict[str, str]:
    """What torchrun gives all workers of a host beside what every worker has here. There is one role."""
    return {
        "TORCHELASTIC_RUN_ID": given.get("rdzv_id") or "none",
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "GROUP_RANK": str(max(0, spec.node_rank)),
        "GROUP_WORLD_SIZE": str(hosts),
        "ROLE_NAME": given.get("role", "default"),
        "ROLE_WORLD_SIZE": str(spec.worker_num),
    }


def _placed_by_slurm(given: Mapping[str, Any], machine: Machine) -> tuple[dict[str, str], list[str]]:
    """What a step of Slurm's says where nothing else says where the hosts meet; and what is said of it."""
    step = slurm.read(machine.environment)
    if step is None or {"standalone", "nnodes", "rdzv_endpoint", "master_addr", "master_port"} & set(given):
        return {}, []
    if step.step_id is None:
        many = f"{len(step.hosts)} hosts, and this command uses one of them"
        advice = "`srun --ntasks-per-node=1 recovery run ...` uses all, and so does `recovery slurm`"
        return {}, [f"job {step.job_id} of Slurm has {many}: {advice}"] if len(step.hosts) > 1 else []
    if step.tasks_per_host > 1:
        raise SettingError(
            "SETTING_RANGE",
            field="SLURM_STEP_TASKS_PER_NODE",
            value=step.tasks_per_host,
            rule="must be 1: this command is one task of a host, and starts the workers itself",
            next_step=f"Write srun --ntasks-per-node=1 recovery run --nproc-per-node={step.tasks_per_host} ...",
        )
    spares = values.standby_num("spares", given.get("spares", "0"))
    if spares >= len(step.hosts):
        raise _refuse(
            "spares",
            given["spares"],
            f"leaves none of the {len(step.hosts)} hosts of this step",
            "Ask Slurm for more, or for fewer spares.",
        )
    hosts = len(step.hosts) - spares
    meets_at = machine.address_of(step.hosts[0]) if len(step.hosts) > 1 else "127.0.0.1"
    found = {
        "nnodes": str(hosts),
        "node_rank": str(step.position),
        "rdzv_endpoint": f"{meets_at}:{step.port}",
    }
    if step.gpus:
        found["nproc_per_node"] = str(step.gpus)
    said = ", ".join(f"--{name}={value}" for name, value in found.items() if name not in given)
    return found, [f"taken from Slurm: {said}"]


def _defaults(environment: Mapping[str, str]) -> dict[str, Any]:
    """What the environment says where nothing is typed (torch 2.13, torch.distributed.argparse_util)."""
    found: dict[str, Any] = {}
    for name in _OF_TORCHRUN:
        value = environment.get(f"{_PREFIX}{name.upper()}", "")
        if value and name in _SWITCHES:
            if value not in ("0", "1"):
                raise SettingError(
                    "SETTING_TYPE",
                    field=f"{_PREFIX}{name.upper()}",
                    value=value,
                    rule="must be 0 or 1",
                    next_step=f"Unset it, or give --{name}.",
                )
            if value == "1":
                found[name] = True
        elif value:
            found[name] = value
    return found


_SWITCHES = ("standalone", "module", "no_python", "run_path", "virtual_local_rank")
_OF_TORCHRUN = (
    *("standalone", "module"),
    *(name for name in (*FLAGS, *WITHOUT_EFFECT, *REFUSED) if name not in ("standbys", "spares", "progress")),
)
_PREFIX = "PET_"


def _as_they_are(given: Mapping[str, Any]) -> dict[str, Any]:
    """What needs only to be read, by field of `JobSpec`."""
    if "tee" in given and "local_ranks_filter" in given:
        raise values.said_twice("tee", "local_ranks_filter", given["tee"])
    found = {
        flag.field: flag.read(name, given[name])
        for name, flag in FLAGS.items()
        if flag.field and name in given
    }
    return {**found, "continue_run": given.get("continue_run")}


def _hosts(text: str) -> int:
    least, _, most = text.partition(":")
    if most and values.count("nnodes", least) != values.count("nnodes", most):
        raise _refuse(
            "nnodes",
            text,
            f"asks for {most} hosts, and for training on with {least} of them: here a job keeps its number of workers, and so its bits",
            f"Give --nnodes={least} or --nnodes={most}. Ranks of a lost host are taken by processes that wait: --standbys=N on a host that stays.",
        )
    return values.count("nnodes", least)


def _workers(text: str, machine: Machine) -> int:
    if text not in _BY_WORD:
        if not text.lstrip("-").isdecimal():
            raise _refuse(
                "nproc_per_node",
                text,
                "must be a number, auto, gpu, xpu or cpu",
                "Give, for example, --nproc_per_node=2.",
            )
        return values.count("nproc_per_node", text)
    seen = 0 if text == "cpu" else machine.devices(text)
    if not seen and text in ("gpu", "xpu"):
        raise _refuse(
            "nproc_per_node",
            text,
            f"counts {text.upper()}s, and this host shows none",
            "Give a number, or cpu.",
        )
    return seen or machine.processors


_BY_WORD = ("auto", "gpu", "xpu", "cpu")


def _meeting(given: Mapping[str, Any], machine: Machine) -> dict[str, Any]:
    """Where the workers meet, and for how long they wait for each other."""
    backend = given.get("rdzv_backend", "static")
    if backend not in _BACKENDS:
        raise _refuse(
            "rdzv_backend",
            backend,
            f"must be {' or '.join(_BACKENDS)}: the scheduler brings the workers together, and needs no other server",
            "Leave it out.",
        )
    found: dict[str, Any] = {}
    if given.get("standalone"):
        found = {"master_addr": "127.0.0.1", "master_port": machine.free_port}
    elif "rdzv_endpoint" in given:
        host, port = _endpoint(given, machine)
        found = {"master_addr": values.host("rdzv_endpoint", host), "master_port": port}
    else:
        if "master_addr" in given:
            found["master_addr"] = values.host("master_addr", given["master_addr"])
        if "master_port" in given:
            found["master_port"] = values.port("master_port", given["master_port"])
    conf = _conf(given)
    timeout = conf.get("join_timeout", conf.get("timeout"))
    if timeout is not None:
        found["cluster_time_out"] = values.seconds("rdzv_conf", timeout)
    return found


def _endpoint(given: Mapping[str, Any], machine: Machine) -> tuple[str, int]:
    text = given["rdzv_endpoint"]
    host, colon, port = text.rpartition(":")
    if not colon or host.endswith(":") or (host.startswith("[") and not host.endswith("]")):
        host, port = text, str(RENDEZVOUS_PORT)
    if port == "0" and _hosts(given.get("nnodes", "1")) == 1:
        return host, machine.free_port
    if port == "0":
        raise _refuse(
            "rdzv_endpoint",
            text,
            "leaves the port to each host, and the others would not know it",
            f"Name a port that is free on {host}, the same on every host: --rdzv_endpoint={host}:{RENDEZVOUS_PORT}.",
        )
    if not (port.isdecimal() and 1024 <= int(port) <= 65535):  # noqa: PLR2004 - as of --master_port
        raise _refuse(
            "rdzv_endpoint",
            text,
            "must end with a port from 1024 to 65535",
            "Give, for example, --rdzv_endpoint=host:29400.",
        )
    return host, int(port)


def _conf(given: Mapping[str, Any]) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in given.get("rdzv_conf", "").split(",") if pair)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _unknown_conf(given: Mapping[str, Any]) -> tuple[str, ...]:
    unknown = sorted(set(_conf(given)) - {"join_timeout", "timeout"})
    return (
        (f"--rdzv_conf: {', '.join(unknown)} has no effect: the scheduler brings the workers together",)
        if unknown
        else ()
    )


def _refuse(flag: str, value: object, rule: str, next_step: str) -> SettingError:
    return SettingError("SETTING_RANGE", field=f"--{flag}", value=value, rule=rule, next_step=next_step)
