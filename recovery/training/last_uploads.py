"""The end of a process whose job has finished: it waits for the last checkpoint to be in object storage, and says by its exit code that it is not.

The wait comes behind the script, and the exit code at last of all: whatever else was registered with atexit, before the engine was imported
or since, still runs.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import util
from types import FrameType

from recovery.errors import CheckpointError
from recovery.training import early_exit, process_end
from recovery.training.stop_signals import StopSignalReceived
from recovery.worker import memory_tier_hold
from recovery.worker.service import WorkerService

_logger = logging.getLogger("recovery.training")
_END_S = 60.0
"""How long the wait is: a storage that fails ends it at once, a slow one or a busy machine has this."""
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_unsent: dict[int, CheckpointError | None] = {}
"""What is not in the storage, by the process that has waited for it: a fork of it has no part in that. None: it ends by another code."""
_left: early_exit.EarlyExit | None = None
"""How the script has left by `sys.exit` behind its training, the last time: nothing else says that to a handler of atexit."""


def await_at_exit(service: WorkerService, was_asked: Callable[[], bool] = lambda: False) -> None:
    """Where the job has finished, have the end of this process wait: its script goes on first, with what it does behind training.

    Args:
        service: of this process.
        was_asked: has a SIGTERM come that was held back? Then there is no wait.
    """
    if service.training_control.job_is_over and service.object_storage.is_on:
        atexit.register(_await_in, os.getpid(), service, was_asked)
        sys.exit = early_exit.exit_that_notes(note_exit)


def note_exit(error: SystemExit, at: FrameType | None = None) -> None:
    """`sys.exit` was called behind training: its code is the script's own.

    Args:
        error: that it raises.
        at: the frame that called it; None: it has left the script.
    """
    global _left  # noqa: PLW0603 - a process has one end
    _left = early_exit.seen(error, at=at)


def _await_in(pid: int, service: WorkerService, was_asked: Callable[[], bool]) -> None:
    if os.getpid() == pid:
        await_sent(service, was_asked)


def await_sent(service: WorkerService, was_asked: Callable[[], bool]) -> None:
    """Wait until the last checkpoint is sent. Ctrl-C and SIGTERM end the wait; what is not sent then is the exit code of this process.

    Args:
        service: of this process, whose job has finished.
        was_asked: as for `await_at_exit`.
    """
    storage = service.object_storage
    step = storage.unsent_step
    if not step or os.getpid() in _unsent:
        return
    try:
        try:
            with _signals_raise():
                # Looked at behind the handlers: what came before them is found here, what comes now raises.
                if was_asked():
                    _give_up(service, StopSignalReceived(signal.SIGTERM))
                    return
                _logger.info(
                    "event=upload_awaited step=%d within_s=%g training is done; this process ends once its last checkpoint is in %s, "
                    "or so many seconds are over",
                    step,
                    _END_S,
                    storage.url,
                )
                storage.await_sent(_END_S)
        except StopSignalReceived as stopped:
            _give_up(service, stopped)
    except CheckpointError as error:
        _note_unsent(step, error)


def stopped_before_the_wait(service: WorkerService, stopped: StopSignalReceived) -> int:
    """A signal ends this process behind its training, before it came to the wait: there is none. What is not sent is its exit code.

    Args:
        service: of this process, whose job has finished.
        stopped: by which signal.

    Returns:
        That exit code; 0: everything is sent, or the process ends by another one.
    """
    step = service.object_storage.unsent_step
    try:
        _give_up(service, stopped)
    except CheckpointError as error:
        _note_unsent(step, error)
    unsent = _unsent.get(os.getpid())
    return unsent.exit_code if unsent is not None else 0


def _give_up(service: WorkerService, stopped: StopSignalReceived) -> None:
    service.object_storage.give_up(f"{stopped} has ended the wait for it.")


def _note_unsent(step: int, error: CheckpointError) -> None:
    _logger.warning("event=upload_not_finished step=%d %s", step, error.parts["reason"])
    # A script that has failed behind its training says so by its own exit code.
    has_failed = getattr(sys, "last_value", None) is not None or (_left is not None and not _left.succeeds)
    _unsent[os.getpid()] = None if has_failed else error


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Let the signals that stop a process raise here, unless they are ignored. Once one has, another one ends the process."""
    handlers = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
    if threading.current_thread() is not threading.main_thread():
        handlers = {}
    # None: a handler that is not Python's, which could not be put back.
    replaced = {number: how for number, how in handlers.items() if how not in (signal.SIG_IGN, None)}

    def stop(number: int, frame: FrameType | None) -> None:
        for each in replaced:
            replaced[each] = signal.SIG_DFL
        raise StopSignalReceived(number)

    for number in replaced:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, how in replaced.items():
            signal.signal(number, how)


def leave_unsent() -> None:
    """End this process by what it has not sent, if there is anything. What was registered with atexit before this still runs."""
    error = _unsent.get(os.getpid())
    if error is None or process_end.end_by(error.exit_code, str(error)):
        return
    # Two handlers may not follow any more: what a job that is over has left in memory goes, and processes of the script's own come to their end.
    memory_tier_hold.leave_all()
    util._exit_function()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public way; what was done already is not done again
    process_end.leave_at_exit(error.exit_code, str(error))


# First registered, last called: a signal may still end what comes before.
atexit.register(leave_unsent)
