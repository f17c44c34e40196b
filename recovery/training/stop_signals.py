"""Being asked to stop: SIGTERM and SIGINT reach the main thread as exceptions, and are not lost where Python drops exceptions.

A first SIGTERM may be held back while training goes on: the rank is handed over to a standby, if one is there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_AGAIN_AFTER_S = 0.02
"""Until a signal that was dropped is sent again: whatever dropped it has most likely returned by then."""


class StopSignalReceived(BaseException):
    """SIGTERM reached the main thread."""

    def __init__(self, number: int) -> None:
        """Keep which signal it was.

        Args:
            number: SIGTERM's.
        """
        self.number = number
        super().__init__(signal.Signals(number).name)


def signal_number(error: BaseException) -> int:
    """Give the signal behind `StopSignalReceived` or `KeyboardInterrupt`."""
    return error.number if isinstance(error, StopSignalReceived) else signal.SIGINT


def _install(handler: Callable[[int, FrameType | None], None]) -> None:
    """Install a handler for SIGTERM that processes forked by the training function do not inherit: their parent ends them by that signal."""
    if not _installed:
        os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_reset_in_child)
    _installed[:] = [handler]
    signal.signal(signal.SIGTERM, handler)


_installed: list[Callable[[int, FrameType | None], None]] = []
"""The last one."""
_holding = threading.local()


def _hold() -> None:
    """A signal for the child that comes before its handler is reset waits: Python drops what it has not handled by the fork."""
    if signal.getsignal(signal.SIGTERM) in _installed:
        _holding.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release() -> None:
    mask = vars(_holding).pop("mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _reset_in_child() -> None:
    if signal.getsignal(signal.SIGTERM) in _installed:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release()


class StopSignals:
    """SIGTERM asks the main thread to leave in order, unless the user has a handler of their own.

    A handler runs wherever the main thread happens to be. In a finalizer or a weak reference's callback Python prints what is raised
    and drops it; such a signal is sent again.
    """

    def __init__(self, hold_back: Callable[[], None]) -> None:
        """Nothing was asked.

        Args:
            hold_back: called in the main thread, wherever it is, at the first SIGTERM; `let_through` follows, or the process ends.
        """
        self._hold_back, self._is_held_back = hold_back, False
        self._ours = False

    @property
    def has_held_back(self) -> bool:
        """Has a SIGTERM come that was held back, and not let through?"""
        return self._is_held_back

    def let_through(self) -> None:
        """Let the signal that was held back reach the main thread. From any thread."""
        if self._is_held_back:
            signal.pthread_kill(_main_thread(), signal.SIGTERM)

    def open(self) -> None:
        """SIGTERM asks from now on, until `close`."""
        self._hook = sys.unraisablehook
        on_main_thread = threading.current_thread() is threading.main_thread()
        self._ours = on_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if self._ours:
            _install(self._on_sigterm)
        if on_main_thread:
            sys.unraisablehook = self._on_unraisable

    def __enter__(self) -> None:
        self.open()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """SIGTERM is the script's own again. Called twice it does nothing more."""
        if sys.unraisablehook == self._on_unraisable:
            sys.unraisablehook = self._hook
        if self._ours:
            self._ours = False
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        # The second one, ours or another, is not held back.
        first, self._is_held_back = not self._is_held_back, True
        if not first:
            raise StopSignalReceived(number)
        self._hold_back()

    def _on_unraisable(self, unraisable: UnraisableHookArgs) -> None:
        dropped = unraisable.exc_value
        if not isinstance(dropped, StopSignalReceived | KeyboardInterrupt):
            self._hook(unraisable)
            return
        again = threading.Timer(_AGAIN_AFTER_S, signal.pthread_kill, (_main_thread(), signal_number(dropped)))
        again.daemon = True
        again.start()


class ScriptStopSignals:
    """A first SIGTERM is held back in a program that is entered only once, unless it has a handler of its own.

    Behind the job's end none ends the process by itself: the wait for the last upload looks whether one has come.
    """

    def __init__(self, hold_back: Callable[[], None], job_is_over: Callable[[], bool]) -> None:
        """Nothing was asked.

        Args:
            hold_back: as for `StopSignals`.
            job_is_over: has the job finished?
        """
        self._hold_back, self._job_is_over = hold_back, job_is_over
        self.has_held_back = False
        """Has a SIGTERM come that did not end the process?"""
        self._came_behind = False

    def open(self) -> None:
        """Hold back from now on."""
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            _install(self._on_sigterm)

    def close(self) -> None:
        """It holds back to the end of the process."""

    def let_through(self) -> None:
        """Let the signal through, from any thread: it ends the process as it would have without this."""
        if self.has_held_back and not self._job_is_over():
            signal.pthread_kill(_main_thread(), signal.SIGTERM)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        first, self.has_held_back = not self.has_held_back, True
        if self._job_is_over() and not self._came_behind:
            self._came_behind = True
        elif first:
            self._hold_back()
        else:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)


def _main_thread() -> int:
    ident = threading.main_thread().ident
    assert ident is not None, "it has started"
    return ident
