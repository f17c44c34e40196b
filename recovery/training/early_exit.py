"""A script that ends its process before training does: `sys.exit()` in the loop, a test that skips itself there.

What passes through the training function as an exception is seen by the run loop. A script that called `recovery.init()` is its own loop,
so there it is seen at the moment at which it leaves `session.steps`.
"""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import NoReturn

import msgspec

from recovery.errors import ExitBeforeEndError

_OURS = (__name__, "recovery.training.session")


class EarlyExit(msgspec.Struct, frozen=True, kw_only=True):
    """How training was left."""

    how: str
    """`SystemExit: exit code 0`, `Skipped: not today`."""
    succeeds: bool
    """The process would end as if all were well."""
    traceback: str

    @property
    def error(self) -> str:
        """What the scheduler is told."""
        return f"{self.how} before the end of training"


def seen(error: BaseException, *, at: FrameType | None = None) -> EarlyExit:
    """Describe what leaves training.

    Args:
        error: it.
        at: the frame that it has reached; None: it has been caught, and says so itself.
    """
    how, code = str(error), 0
    if isinstance(error, SystemExit):
        code = _code_of(error)
        how = f"exit code {code}"
    stack = traceback.format_stack(at) if at is not None else traceback.format_tb(error.__traceback__)
    last = traceback.format_exception_only(type(error), error)
    return EarlyExit(
        how=f"{type(error).__name__}: {how}",
        succeeds=not code,
        traceback="".join(["Traceback (most recent call last):\n", *stack, *last]),
    )


def line_of(left: EarlyExit, step: int) -> str:
    """The one clear line of a process that would otherwise end as if all were well."""
    return str(ExitBeforeEndError(how=left.how, step=step))


def leaving() -> EarlyExit | None:
    """Is the generator that calls this closed by an exit that leaves its caller's frame?

    A `break` closes it as well, and nothing but the exception itself tells the two apart: it is alive. One that was caught and kept has
    its traceback; one that is on its way has none yet (before Python 3.12), or one that ends in a frame that still stands.
    """
    standing = _standing(sys._getframe(1))  # noqa: SLF001 - no other way to it
    outside = next((frame for frame in standing if frame.f_globals["__name__"] not in _OURS), standing[-1])
    for one in gc.get_objects():
        if _is_exit(type(one)) and _is_on_its_way(one, standing):
            return seen(one, at=outside)
    return None


def exit_that_tells(note: Callable[[SystemExit, FrameType], None]) -> Callable[..., NoReturn]:
    """Make what stands for `sys.exit`, whose exception has no object of its own before Python 3.12 until somebody catches it.

    A script of Python 3.10 or 3.11 that has taken the function out of `sys` before (`from sys import exit`) is not seen to leave.

    Args:
        note: told of the exception and of the frame that asked, in the main thread only: elsewhere it ends a thread.
    """

    def exit_with_an_exception(code: object = None, /) -> NoReturn:
        error = SystemExit(code)
        if threading.current_thread() is threading.main_thread():
            note(error, sys._getframe(1))  # noqa: SLF001 - no other way to it
        raise error

    return exit_with_an_exception


def _is_exit(kind: type) -> bool:
    """Mistakes are heard of by the interpreter's hook. Other libraries keep exceptions that were never raised, of kinds of their own."""
    bases = kind.__mro__
    return BaseException in bases and any(
        base is SystemExit or base.__module__ == "_pytest.outcomes" for base in bases
    )


def _is_on_its_way(error: BaseException, standing: list[FrameType]) -> bool:
    trace = error.__traceback__
    return trace is None or any(link.tb_frame in standing for link in _links(trace))


def _links(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _standing(frame: FrameType | None) -> list[FrameType]:
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _code_of(error: SystemExit) -> int:
    """As the interpreter makes it: None is 0, and a sentence is printed and is 1."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1
