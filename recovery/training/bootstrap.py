"""How a training process begins: settings, logging, and its role. A scheduler serves here and never reaches the user's code."""

from __future__ import annotations

import gc
import logging
import os
import secrets
from collections.abc import Mapping
from typing import NoReturn

import msgspec
from typing_extensions import assert_never

from recovery import config, log
from recovery.config import Settings, SettingsRole
from recovery.config.secret import Secret
from recovery.core.ids import NodeId
from recovery.core.messages import Rollback
from recovery.training import process_end, rank_0_scheduler, secure_channel

_logger = logging.getLogger("recovery.training")

_TOKEN = "MS_JOB_TOKEN"  # noqa: S105 - the name of a variable
_job_token: Secret | None = None
"""Of a process that has begun before: its environment has none any more."""


def begin() -> Settings:
    """Read the environment; a process with MS_ROLE=MS_SCHED serves here and never returns to the user's code.

    Returns:
        The settings of a worker or server; a node without an id has been given a random one.

    Raises:
        SettingError: a variable is wrong.
    """
    settings = config.load()
    secure_channel.note_joined()
    log.setup(settings.role.value)
    for warning in settings.warnings:
        _logger.warning("event=setting_mended %s", warning)
    match settings.role:
        case SettingsRole.SCHEDULER:
            serve(settings)
        case SettingsRole.WORKER | SettingsRole.SERVER:
            settings = _without_token(settings)
            rank_0_scheduler.start_if_due(settings)
        case _ as unknown:
            assert_never(unknown)
    return _with_node_id(settings)


def serve(settings: Settings, *, with_pid: int | None = None) -> NoReturn:
    """Be the scheduler until the job ends, then end this process.

    Args:
        settings: of a scheduler.
        with_pid: a process to end with, as if SIGTERM had come; None: of nobody.

    Raises:
        RecoveryError: as `recovery.scheduler.service.serve`.
    """
    from recovery.scheduler import service, startup  # noqa: PLC0415 - workers never need it

    startup.keep_memory_out_of_core_dumps()
    try:
        service.serve(settings, with_pid=with_pid)
    except service.StoppedBySignal as stopped:
        process_end.leave(128 + stopped.number, "")
    finally:
        # The interpreter's end looks for cycles among all modules: 0.4 s of the 0.5 s for which everybody waits.
        gc.freeze()
    process_end.leave(0, "")


def announce_rank(settings: Settings, plan: Rollback, *, is_first: bool) -> None:
    """Export the rank to the script as RANK_ID, and log it; to a process that took a lost rank, its place on the host too.

    That place comes with the first plan, and stays: when ranks come to this host or leave it later, the script has chosen its device,
    and so have the others.

    The line has the words of msrun's documents (`grep -rn "Global rank id"`): where ranks are automatic nobody knows them before. A
    program that replaces this one by exec starts without the variables.
    """
    places = places_of(settings, plan, os.environ) if is_first else {}  # noqa: TID251 - as below
    os.environ.update({"RANK_ID": str(plan.rank), **places})  # noqa: TID251 - the script reads it there
    _logger.info("event=rank_known Global rank id: %d", plan.rank)


def places_of(settings: Settings, plan: Rollback, environ: Mapping[str, str]) -> dict[str, str]:
    """What the parent of this process could not know: which rank it would take, and so which device of its host.

    A standby has none of these variables, unless a person set them. A process that was started for a lost rank has those of the
    process before it, and may have been given another rank.
    """
    places = {"RANK": plan.rank, "LOCAL_RANK": plan.local_rank, "DEVICE_ID": plan.local_rank}
    if "TORCHELASTIC_RUN_ID" in environ:
        places["ROLE_RANK"] = plan.rank
    return {
        name: str(place)
        for name, place in places.items()
        if settings.replaces or (settings.standby and name not in environ)
    }


def _without_token(settings: Settings) -> Settings:
    """Take the job's token out of the environment: what the script starts need not know it. A program after exec finds it again."""
    global _job_token  # noqa: PLW0603 - a process has one environment
    if os.environ.pop(_TOKEN, None) is not None:  # noqa: TID251 - read by recovery.config
        _job_token = settings.job_token
    return msgspec.structs.replace(settings, job_token=_job_token)


def _with_node_id(settings: Settings) -> Settings:
    """A node without an id is allowed without recovery only, and gets a random one: nobody can come back to it."""
    if settings.node_id is not None:
        return settings
    return msgspec.structs.replace(settings, node_id=NodeId(f"auto-{secrets.token_hex(6)}"))
