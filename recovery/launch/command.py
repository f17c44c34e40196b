"""From a job to the agent that keeps its processes: the one way by which every command starts jobs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from typing_extensions import assert_never

from recovery import config, frameworks, log
from recovery.checkpoint import memory_tier
from recovery.config.reader import Reader
from recovery.errors import LaunchFailedError, SettingError
from recovery.launch import (
    background,
    console,
    credentials,
    host_address,
    notices,
    placement,
    preflight,
    python_command,
    script_imports,
    status_line,
    stored_advice,
    train_job_posts,
)
from recovery.launch.agent import Agent
from recovery.launch.job_spec import FLAGS_BEHIND, Host, JobSpec, Restart
from recovery.launch.job_view import SCHEDULER_HERE_S, EarlierJob, Members
from recovery.launch.kernel_log import KernelLog
from recovery.launch.launch_context import LaunchContext, Takeover
from recovery.launch.log_follow import Tail, follow
from recovery.launch.preload import prepare_for, proxies_only
from recovery.launch.presence import look_at
from recovery.launch.scheduler_contact import Contact, SchedulerContact
from recovery.launch.start_method import ProcessStarter, TemplatePlan
from recovery.launch.train_job_posts import TrainJobPosts
from recovery.launch.worker_completion import WorkerCompletion
from recovery.store.paths import scheduler_path
from recovery.tls.process_channels import channel_of
from recovery.tls.side import Side
from recovery.transport import inspection_client
from recovery.transport.access import Access
from recovery.transport.local_address import address_towards, is_local

LastWords = Callable[[int], Sequence[str]]


def _no_words(_: int) -> Sequence[str]:
    return ()


def launch(spec: JobSpec, environment: Mapping[str, str], *, last_words: LastWords = _no_words) -> int:
    """Start and watch a job, or this host's part of it. Gives the exit code.

    Args:
        spec: the job.
        environment: of the processes.
        last_words: gives lines about the job and this exit code, for a person who has waited for its end.

    Raises:
        SettingError: something of it cannot be; nothing was started.
        StoreLockedError: a job runs on its path already; nothing was started.
        SecureChannelError: TLS is on, and something of its material is wrong; nothing was started.
    """
    named = spec.master_addr
    spec = msgspec.structs.replace(spec, master_addr=host_address.resolve(named))
    reading = script_imports.parse_script(placement.program_of(spec, sys.executable)[1:], Path.cwd())
    program = _look_at(spec, reading)
    train_job, environment = _train_job(environment, reading, program)
    _check_standbys(spec, environment)
    takeover_after_ms = Reader.of_one("MS_TAKEOVER_AFTER", environment).whole_ms("MS_TAKEOVER_AFTER")
    stop_grace_s = Reader.of_one("MS_STOP_GRACE", environment).whole("MS_STOP_GRACE")
    host = _this_host(spec.master_addr)
    placed = placement.place(spec, host, program)
    looked = preflight.Looked(spec, environment, reading, placed, Path.cwd())
    preflight.look(looked, _warn)
    log_dir, own_dir = _directories(spec, host)
    simulates = spec.dry_run is not None
    scheduler = spec.master_addr, spec.master_port
    access = Access() if simulates else _access(spec, environment, host)
    contact = Contact() if simulates else SchedulerContact(*scheduler, access)
    status = partial(inspection_client.ask, *scheduler, "/status", access=access)
    beginner = _beginner(spec, placed, environment)
    context = LaunchContext(
        environment=environment,
        log_dir=log_dir,
        max_restarts=spec.max_restarts,
        has_stepped=(lambda: True)
        if program.supervised
        else (lambda: stored_advice.has_stepped(environment)),
        contact=contact,
        members=Members(contact),
        rejoin=spec.rejoin,
        takeover=_takeover(takeover_after_ms, spec, host, program),
        beginner=beginner,
        completion=None
        if simulates
        else WorkerCompletion(status, lambda: stored_advice.stored_job(environment)),
        kernel_log=KernelLog(),
        stop_grace_s=stop_grace_s,
        signals_to_handle=spec.signals_to_handle,
        saves_at_end=not program.supervised,
        start_patience_ms=spec.cluster_time_out * 1000 if spec.cluster_time_out >= 0 else None,
        notices=notices.of_host(environment, _warn, stop_grace_s, saves=not program.supervised),
        earlier=_earlier(environment, contact, placed, beginner),
    )
    _warn_of_loopback(named, spec)
    _clear_memory(environment, job_is_over=False)
    agent = Agent(placed, context)
    posts = None
    if train_job is not None and context.completion is not None and _is_first(spec, placed):
        posts = TrainJobPosts(train_job, status, context.completion, _warn)
    run = partial(_run, agent, environment=environment, flags=FLAGS_BEHIND[spec.typed_as], posts=posts)
    if not spec.join:
        pid = background.hand_over(own_dir, lambda: _to_its_end(run([])), stop_grace_s=stop_grace_s)
        console.say(f"the job runs in the background (pid {pid}); `recovery stop {own_dir}` ends it")
        return 0
    shown: list[Coroutine[Any, Any, None]] = [follow(_tails(spec, placed, log_dir))]
    if spec.progress and status_line.is_wanted() and not simulates:
        shown.append(status_line.show(*scheduler, access, agent.starts, tells_steps=not program.supervised))
    return _in_foreground(run(shown), _no_words if simulates else last_words)


def _warn(text: str) -> None:
    console.say(text, style="yellow")


def _train_job(
    environment: Mapping[str, str], reading: script_imports.Reading, program: placement.Script
) -> tuple[train_job_posts.Server | None, Mapping[str, str]]:
    """Where the status of the TrainJob goes, and the environment that the processes then have."""
    tells_steps = not program.supervised
    server = train_job_posts.server_of(environment, reading.packages, tells_steps=tells_steps, say=_warn)
    return server, environment if server is None else train_job_posts.for_processes(environment)


def _is_first(spec: JobSpec, placed: Sequence[placement.Placed]) -> bool:
    """Is this the one launcher that speaks for the job? That of the first host; where hosts have no position, that beside the scheduler."""
    if spec.node_rank >= 0:
        return spec.node_rank == 0
    return _has_scheduler(placed)


def _has_scheduler(placed: Sequence[placement.Placed]) -> bool:
    return any(process.kind is placement.ProcessKind.SCHEDULER for process in placed)


def _takeover(after_ms: int | None, spec: JobSpec, host: Host, program: placement.Script) -> Takeover | None:
    if after_ms is None or spec.dry_run is not None:
        return None
    return Takeover(after_ms, lambda rank: placement.taker(spec, host, program, rank.rank, rank.holder))


def _in_foreground(job: Coroutine[Any, Any, int], last_words: LastWords) -> int:
    """Wait for the job's end. Gives the exit code."""
    code = _to_its_end(job)
    for line in last_words(code):
        console.say(line)
    log.flush_streams()
    return code


def _to_its_end(job: Coroutine[Any, Any, int]) -> int:
    """Run it. Gives its exit code.

    Raises:
        LaunchFailedError: no thread can be started, and so nothing was.
    """
    codes: list[int] = []

    async def noted() -> None:
        codes.append(await job)

    try:
        asyncio.run(noted())
    except RuntimeError as error:
        # The loop ends the threads that it has used from one thread more.
        if not codes:
            next_step = "Look at the limits of this user's processes and of this host's memory."
            raise LaunchFailedError(process="the launcher", reason=str(error), next_step=next_step) from error
    return codes[0]


def _access(spec: JobSpec, environment: Mapping[str, str], host: Host) -> Access:
    channel = config.secure_channel({**environment, **spec.variables})
    return Access(credentials.of_launcher(environment, host.address), channel_of(channel, Side.CLIENT))


def _warn_of_loopback(named: str, spec: JobSpec) -> None:
    """Before workers of other hosts are waited for."""
    only_here = host_address.only_here(named, spec.master_addr)
    if only_here and not spec.is_on_one_host:
        console.say(only_here, style="yellow")


def _directories(spec: JobSpec, host: Host) -> tuple[Path, Path]:
    """Where logs go, and where this launcher notes itself. Raises as `_created`."""
    own = _created(placement.own_directory(spec, host))
    # Ranks that are given are names that no other host has.
    return own if spec.node_rank < 0 else _created(spec.log_dir), own


def _created(log_dir: Path) -> Path:
    """The directory, with all above it.

    Raises:
        SettingError: it cannot be made.
    """
    directory = log_dir.resolve()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            "SETTING_RANGE",
            field="--log_dir",
            value=log_dir,
            rule=f"cannot be made ({error.strerror})",
            next_step="Give a directory that this user may write.",
        ) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise SettingError(
            "SETTING_RANGE",
            field="--log_dir",
            value=log_dir,
            rule="is there, and this user may not write into it",
            next_step="Give a directory that this user may write.",
        )
    return directory


def _look_at(spec: JobSpec, reading: script_imports.Reading) -> placement.Script:
    """What the script's imports say about how it is run.

    Raises:
        SettingError: a dry run is asked of a framework that has none.
    """
    imports = reading.packages
    found = frameworks.used(imports)
    if spec.dry_run is not None and found and not any(each.has_dry_run for each in found):
        able = " or ".join(each.title for each in frameworks.FRAMEWORKS if each.has_dry_run)
        raise SettingError(
            "SETTING_CONFLICT",
            field="--sim_level",
            value=spec.dry_run.level,
            rule=f"{spec.task[0]} trains on {found[0].title}, which has no dry run",
            next_step=f"Leave the flag out, or give a script that trains on {able}.",
        )
    match spec.restart:
        case Restart.AUTO:
            supervised = "recovery" not in imports
        case Restart.WORKER:
            supervised = False
        case Restart.WORLD:
            supervised = True
        case _:
            assert_never(spec.restart)
    forming = (name for name in frameworks.forming_worlds() if name in imports)
    return placement.Script(supervised=supervised, world_of=next(forming, ""))


def _check_standbys(spec: JobSpec, environment: Mapping[str, str]) -> None:
    if spec.waiting_num and environment.get("MS_ENABLE_RECOVERY") != "1":
        raise SettingError(
            "SETTING_CONFLICT",
            field="--standby_num" if spec.standby_num else "--spares",
            value=spec.standby_num or spec.spare_hosts,
            rule="without MS_ENABLE_RECOVERY=1 the first failure ends the job, and nobody takes a lost rank",
            next_step="Set MS_ENABLE_RECOVERY=1 and MS_RECOVERY_PATH, or leave the flag out.",
        )


def _beginner(
    spec: JobSpec, placed: Sequence[placement.Placed], environment: Mapping[str, str]
) -> ProcessStarter:
    """What begins the processes: the template is made for the workers, which all run the same command."""
    workers = [process for process in placed if process.kind is not placement.ProcessKind.SCHEDULER]
    first = workers[0]
    command = python_command.parse_python_command(first.command)
    if command is None:
        return ProcessStarter(
            spec.start_method, None, why_none=f"{first.command[0]} is what they are started by"
        )
    directory, words = Path.cwd(), first.command[1:]
    plan = TemplatePlan(
        interpreter=command.interpreter,
        options=command.options,
        environment=placement.environment_of_all(workers, environment),
        cpus=first.cpus,
        prepare=lambda: prepare_for(command, words, directory),
        proxies_only=proxies_only,
    )
    return ProcessStarter(spec.start_method, plan)


def _earlier(
    environment: Mapping[str, str],
    contact: Contact,
    placed: Sequence[placement.Placed],
    beginner: ProcessStarter,
) -> EarlierJob | None:
    """Asks what was left behind here; None: the scheduler is started here too, and has no store that could know anything."""
    path = environment.get("MS_RECOVERY_PATH", "")
    is_here = _has_scheduler(placed)
    if is_here and not (path and look_at(scheduler_path(Path(path))).may_be_there):
        return None
    patience_s = SCHEDULER_HERE_S if is_here else 0.0
    return EarlierJob(contact, meanwhile=beginner.first_template, patience_s=patience_s)


def _this_host(master_addr: str) -> Host:
    nodes = Path("/sys/devices/system/node").glob("node[0-9]*")
    # Node ids are made of it, and an IPv6 address that the system draws is another one tomorrow.
    family = socket.AF_INET6 if ":" in master_addr else socket.AF_INET
    return Host(
        name=socket.gethostname(),
        # Without a route now the workers will report it when they connect.
        address=address_towards(master_addr, 9, family) or socket.gethostname(),
        owns_master_addr=is_local(master_addr),
        interpreter=sys.executable,
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        numa_nodes=tuple(sorted(int(node.name.removeprefix("node")) for node in nodes)) or (0,),
    )


def _tails(spec: JobSpec, placed: Sequence[placement.Placed], log_dir: Path) -> list[Tail]:
    """The logs to show. A worker goes by its rank; by its place on this host while only the scheduler knows the rank.

    A standby goes by its name, and is shown where all are. Of the scheduler's log that is shown which a person is waiting for without knowing it: who was
    refused.
    """
    shown = []
    for process in placed:
        number = process.local_index if process.rank is None else process.rank
        is_standby = process.kind is placement.ProcessKind.STANDBY
        asked = spec.tail_worker_log is None or (number in spec.tail_worker_log and not is_standby)
        if process.kind is placement.ProcessKind.SCHEDULER:
            log = log_dir / f"{process.name}.log"
            shown.append(Tail(log, process.name, number=0, only="event=peer_refused"))
        elif asked:
            label = process.name if is_standby else str(number)
            shown.append(Tail(log_dir / f"{process.name}.log", label, number=number))
    return shown


async def _run(
    agent: Agent,
    shown: Sequence[Coroutine[Any, Any, None]],
    *,
    environment: Mapping[str, str],
    flags: Mapping[str, str],
    posts: TrainJobPosts | None,
) -> int:
    """The agent, with what is shown beside it; the cause of a failure comes last, where one looks first."""
    beside = [asyncio.to_thread(stored_advice.load, environment), *shown, *([posts.keep()] if posts else [])]
    showing = [asyncio.create_task(_beside(coroutine)) for coroutine in beside]
    try:
        code = await agent.run()
    finally:
        for task in showing:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        _clear_memory(environment, job_is_over=True)
    if posts is not None:
        await posts.end()
    agent.show_cause(flags)
    return code


async def _beside(work: Coroutine[Any, Any, None]) -> None:
    """What only shows, or saves time, ends nothing when it fails."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - see above
        console.say(f"not shown any further: {type(error).__name__}: {error}", style="yellow")


def _clear_memory(environment: Mapping[str, str], *, job_is_over: bool) -> None:
    """Remove from this host's memory what no process of any job holds any more, and what this job has left when it is over."""
    path = environment.get("MS_RECOVERY_PATH", "")
    ended = Path(path).absolute() if job_is_over and path else None
    memory_tier.clear_up(config.memory_base(environment), ended=ended)
