"""How a training process ends: one clear line with its own exit code, in order, under pytest too."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any, NoReturn

from recovery import config, end_note, log
from recovery.errors import RecoveryError

_logger = logging.getLogger("recovery.training")
_STOPPED_IN_ORDER = (128 + signal.SIGTERM, 128 + signal.SIGINT)


def _level_of(code: int) -> int:
    """Whom a person or a system has stopped in order has not failed."""
    return logging.INFO if code in _STOPPED_IN_ORDER else logging.ERROR


@contextlib.contextmanager
def one_clear_line() -> Iterator[None]:
    """Turn an error of ours into its line and its exit code; a traceback would only bury them."""
    try:
        yield
    except RecoveryError as error:
        leave(error.exit_code, str(error))


def leave(code: int, line: str) -> NoReturn:
    """End the process in order, under pytest too, where a SystemExit would count as a failed test."""
    if line:
        _logger.log(_level_of(code), "event=exit code=%d %s", code, line)
    end_note.note_exit(code)
    log.flush_streams()
    if config.under_pytest():
        _leave_pytest(code, line)
    raise SystemExit(code)


def leave_at_exit(code: int, line: str) -> NoReturn:
    """End the process where a SystemExit is only printed: in a handler of atexit, behind the script's end."""
    if line:
        _logger.log(_level_of(code), "event=exit code=%d %s", code, line)
    end_note.note_exit(code)
    for child in multiprocessing.active_children():
        child.kill()
    log.flush_streams()
    os._exit(code)


def end_by(code: int, line: str) -> bool:
    """Have the process that is at its end leave with this exit code, behind whatever else is registered with atexit.

    The interpreter has fixed its own exit code before it calls the first of them. So the code is given where the C library ends the
    process: it calls last what was registered with it last, which is behind the interpreter's own end, so that this one is as whole as
    any. What C libraries have registered before is passed over, as by `os._exit`; what C has buffered is written first.

    Returns:
        False: this system does not have it, and nothing was done.
    """
    try:
        import ctypes  # noqa: PLC0415 - a Python may be built without it

        libc = ctypes.CDLL(None)
        register, leave_now = getattr(libc, "__cxa_atexit"), ctypes.cast(libc._exit, ctypes.c_void_p)  # noqa: SLF001 - names of C
        # Called in the reverse order. Neither is code of Python's: there is no interpreter any more.
        if register(leave_now, ctypes.c_void_p(code), None):
            return False
        register(ctypes.cast(libc.fflush, ctypes.c_void_p), None, None)
    except (ImportError, OSError, AttributeError):
        return False
    _logger.log(_level_of(code), "event=exit code=%d %s", code, line)
    end_note.note_exit(code)
    return True


def log_loop_left_early(step: int) -> None:
    """Log that training was left by a `break` or a `return`: it is allowed, and costs what a user would not expect."""
    _logger.warning(
        "event=loop_left_early step=%d the loop over the steps was left by a break or a return; this rank is done. The step in which it was left "
        "is not counted and not saved, and after a death behind the loop the last checkpoint is trained on: call session.stop() instead, "
        "and let the loop end by itself",
        step,
    )


def _leave_pytest(code: int, line: str) -> NoReturn:
    """End the run of pytest with this exit code.

    Its own way is an exception that counts as a broken module while modules are imported, where a SystemExit would end in an internal
    error. Only a KeyboardInterrupt is handed on there (measured with pytest 8.2 and later).
    """
    import pytest  # noqa: PLC0415 - it is running

    # Typed as Any: pytest hides the exception's class behind a function.
    pytest_exit: Any = pytest.exit
    kind = type("Exit", (pytest_exit.Exception, KeyboardInterrupt), {})
    raise kind(line or "this process has done its part", returncode=code)
