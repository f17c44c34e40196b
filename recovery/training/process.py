"""How a training process begins and ends: settings, role, and one clear line with its own exit code."""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import secrets
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from recovery import config, log
from recovery.config import Settings, SettingsRole
from recovery.core.ids import NodeId
from recovery.errors import RecoveryError
from recovery.training import first_rank

_logger = logging.getLogger("recovery.training")


def begin() -> Settings:
    """Read the environment; a process with MS_ROLE=MS_SCHED serves here and never returns to the user's code.

    Returns:
        The settings of a worker or server; a node without an id has been given a random one.

    Raises:
        SettingError: a variable is wrong.
    """
    settings = config.load()
    log.setup(settings.role.value)
    for warning in settings.warnings:
        _logger.warning("event=setting_mended %s", warning)
    if settings.role is SettingsRole.SCHEDULER:
        serve(settings)
    first_rank.start_scheduler_if_due(settings)
    if settings.node_id is None:  # allowed without recovery only: nobody can come back to a random id
        return msgspec.structs.replace(settings, node_id=NodeId(f"auto-{secrets.token_hex(6)}"))
    return settings


def serve(settings: Settings, *, with_pid: int | None = None) -> NoReturn:
    """Be the scheduler until the job ends, then end this process.

    Args:
        settings: of a scheduler.
        with_pid: a process to end with, as if SIGTERM had come; None: of nobody.

    Raises:
        RecoveryError: as `recovery.scheduler.service.serve`.
    """
    from recovery.scheduler import service  # noqa: PLC0415 - workers never need it

    try:
        service.serve(settings, with_pid=with_pid)
    except service.StoppedBySignal as stopped:
        leave(128 + stopped.number, "")
    finally:
        gc.freeze()  # the interpreter's end looks for cycles among all modules: 0.4 s of 0.5 for which everybody waits
    leave(0, "")


@contextlib.contextmanager
def one_clear_line() -> Iterator[None]:
    """Turn an error of ours into its line and its exit code; a traceback would only bury them."""
    try:
        yield
    except RecoveryError as error:
        leave(error.exit_code, str(error))


def tell_rank(rank: int) -> None:
    """Export the rank and print it as msrun's documents say (`grep -rn "Global rank id"`): where ranks are automatic nobody knows it before."""
    os.environ["RANK_ID"] = str(rank)  # noqa: TID251 - for the script; a program that replaces this one starts without it
    _logger.info("event=rank_known Global rank id: %d", rank)


def say_left_early(step: int) -> None:
    """Training was left before its last step and nothing is wrong with that; whoever wonders why it is short finds it here."""
    _logger.info(
        "event=loop_left_early step=%d the loop over session.steps was left before its end; this rank is done",
        step,
    )


def end_at_exit(code: int, line: str) -> NoReturn:
    """End the process where a SystemExit is only printed: in a handler of atexit, behind the script's end."""
    if line:
        _logger.error("event=exit code=%d %s", code, line)
    for child in multiprocessing.active_children():
        child.kill()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def leave(code: int, line: str) -> NoReturn:
    """End the process in order, under pytest too, where a SystemExit would count as a failed test."""
    if line:
        _logger.error("event=exit code=%d %s", code, line)
    sys.stdout.flush()
    if config.under_pytest():
        _leave_pytest(code, line)
    raise SystemExit(code)


def _leave_pytest(code: int, line: str) -> NoReturn:
    """End the run of pytest with this exit code.

    Its own way is an exception that counts as a broken module while modules are imported, where a SystemExit would end in an internal
    error. Only a KeyboardInterrupt is handed on there.
    """
    import pytest  # noqa: PLC0415 - it is running

    breaks_off: Any = pytest.exit  # pytest hides the class behind a function
    kind = type("Exit", (breaks_off.Exception, KeyboardInterrupt), {})
    raise kind(line or "this process has done its part", returncode=code)
