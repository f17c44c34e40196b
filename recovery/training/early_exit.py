"""A script that ends its process before training ends: `sys.exit()` in the loop, a test that skips itself there.

What passes through the training function as an exception is seen by the run loop. A script that called `recovery.init()` is its own loop,
so there it is seen at the moment at which it leaves `session.steps`.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, TracebackType
from typing import NoReturn

import msgspec

from recovery.errors import ProcessError

_OURS = (__name__, "recovery.training.session")
"""Modules whose frames are not the script's."""


class EarlyExit(msgspec.Struct, frozen=True, kw_only=True):
    """How training was left."""

    how: str
    """`SystemExit: exit code 0`, `Skipped: not today`."""
    succeeds: bool
    """The process would end as if all were well."""
    traceback: str

    @property
    def error(self) -> str:
        """What is reported to the scheduler."""
        return f"{self.how} before the end of training"


class LoopWatch:
    """Whether training is inside its loop over the steps, and how it left that loop before its end.

    Attributes:
        in_loop: a loop has begun and has not come to its end.
        left: how training was left; None: it was not, as far as anybody has seen.
        looks_for_exits: for a script that is its own loop: look for an exit when the iterator of the steps is closed.
    """

    def __init__(self) -> None:
        """Begin before any loop."""
        self.in_loop = self.looks_for_exits = False
        self.left: EarlyExit | None = None
        self._closed = self._ended = False
        self._closed_at: list[tuple[CodeType, int]] = []
        """Where the script stood when the iterator was closed: its functions with their instructions, innermost first."""

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """The loop runs inside: an exit that leaves the block leaves training before its end."""
        self.in_loop, self._closed, self.left = True, False, None
        self._closed_at = []
        try:
            yield
        except SystemExit as error:
            self.left = seen(error)
            raise
        self.in_loop, self._ended = False, True

    @property
    def is_behind(self) -> bool:
        """Has a loop come to its end, and no other begun?"""
        return self._ended and not self.in_loop

    def step_wanted(self) -> None:
        """Another step is asked for: an exit that was noted has been caught by somebody."""
        self.left = None

    def closed(self) -> None:
        """The iterator of the steps is closed before its end.

        A loop that keeps the iterator under a name closes it later than the exit that left it: that one stays.
        """
        if self.looks_for_exits and self.left is None:
            self.left = leaving()
        self._closed = True
        standing = _standing(sys._getframe(1))  # noqa: SLF001 - as below
        self._closed_at = [(frame.f_code, frame.f_lasti) for frame in standing]

    def note_exit(self, error: SystemExit, at: FrameType | None = None) -> None:
        """`sys.exit` was called: inside the loop, or with the code of a failure before any loop has come to its end.

        It counts until another step is asked for, or a loop begins: then somebody has caught it.

        Args:
            error: the exception.
            at: the frame that has called it; None: it has left the script.
        """
        left = seen(error, at=at)
        is_inside = (self.in_loop and not self._closed) or self._has_closed(error)
        if is_inside or not (self.in_loop or self._ended or left.succeeds):
            self.left = left

    def _has_closed(self, error: SystemExit) -> bool:
        """Was the iterator closed by this exit? Then the two stand at one instruction, in the innermost function that both have passed."""
        passed = {link.tb_frame.f_code: link.tb_lasti for link in _links(error.__traceback__)}
        at = next((one for one in self._closed_at if one[0] in passed), None)
        return at is not None and passed[at[0]] == at[1]


def seen(error: BaseException, *, at: FrameType | None = None) -> EarlyExit:
    """Describe what leaves training.

    Args:
        error: the exception.
        at: the frame that it has reached; None: it has been caught, and its own traceback says where it was raised.
    """
    # Another that is no Exception (torch's CheckpointException) ends the process as every mistake does.
    how, code = str(error), 0 if _is_exit(type(error)) else 1
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
    return str(ProcessError("EXIT_BEFORE_END", how=left.how, step=step))


def leaving() -> EarlyExit | None:
    """Is the generator that calls this closed by an exit that leaves its caller's frame?

    A `break` closes it as well, and only the exception itself distinguishes the two: it still exists. One that was caught and kept has
    its traceback; one that is on its way has none yet (before Python 3.12), or one that ends in a frame that still stands.
    """
    standing = _standing(sys._getframe(1))  # noqa: SLF001 - no other way to it
    outside = next((frame for frame in standing if frame.f_globals["__name__"] not in _OURS), standing[-1])
    for candidate in gc.get_objects():
        if _is_exit(type(candidate)) and _is_on_its_way(candidate, standing):
            return seen(candidate, at=outside)
    return None


def exit_that_notes(note: Callable[[SystemExit, FrameType], None]) -> Callable[..., NoReturn]:
    """Make a replacement for `sys.exit`, whose exception has no object of its own before Python 3.12 until somebody catches it.

    A script of Python 3.10 or 3.11 that has taken the function out of `sys` before (`from sys import exit`) is not seen to leave.

    Args:
        note: called with the exception and the frame that asked, in the main thread only: elsewhere it ends a thread.
    """

    def exit_with_an_exception(code: object = None, /) -> NoReturn:
        error = SystemExit(code)
        if threading.current_thread() is threading.main_thread():
            note(error, sys._getframe(1))  # noqa: SLF001 - no other way to it
        raise error

    return exit_with_an_exception


def _is_exit(kind: type) -> bool:
    """Other mistakes reach the interpreter's hook. Other libraries keep exceptions that were never raised, of kinds of their own."""
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
