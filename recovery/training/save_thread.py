"""The thread of one save at a time: whatever ends it is a checkpoint or a save that failed, and never nothing."""

from __future__ import annotations

import atexit
import gc
import logging
import threading
import weakref
from collections.abc import Callable

from recovery import clock
from recovery.training.pending_checkpoint import PendingCheckpoint

_logger = logging.getLogger("recovery.training")

END_S = 4.0
"""How long the end of a process waits for the save under way: a launcher kills 5 s after it has asked (GRACE_S), MS_ABORT_TIMEOUT ends it by
force, and a disk may hold the save for ever."""

_begun: weakref.WeakKeyDictionary[threading.Thread, int] = weakref.WeakKeyDictionary()
"""Threads that may still save, and the step of each; who has ended and is waited for by nobody goes by itself."""


class SaveThread:
    """Belongs to the main thread."""

    def __init__(self, name: str) -> None:
        """Nothing is saved yet.

        Args:
            name: of the thread.
        """
        self._name = name
        self._thread: threading.Thread | None = None

    def begin(self, save: PendingCheckpoint, work: Callable[[], None]) -> None:
        """Save behind the next steps; the save before is waited for. Where no thread can be started the step waits for this one too."""
        self.join()

        def guarded() -> None:
            try:
                work()
            except Exception as error:
                _logger.exception("event=save_broken step=%d", save.step)
                save.failed(f"{type(error).__name__}: {error}")

        thread = threading.Thread(target=guarded, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            guarded()
        else:
            self._thread = thread
            _begun[thread] = save.step
            # Before what was registered since, such as the end of the process that writes for this one.
            atexit.unregister(_await_saves)
            atexit.register(_await_saves)

    @property
    def is_under_way(self) -> bool:
        """Was a save begun that was not waited for?"""
        return self._thread is not None

    def join(self) -> None:
        """Wait for the save under way."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def _await_saves() -> None:
    """Whichever way the process ends. A thread that is in C++ while the interpreter is finalized would end it with -6 (torch/ended_groups.py, fact 3)."""
    # In a thread that saves a collection could drop a group of an earlier world (fact 4 there).
    gc.disable()
    until_ms = clock.monotonic_ms() + round(END_S * 1000)
    for thread, step in list(_begun.items()):
        thread.join(max(0, until_ms - clock.monotonic_ms()) / 1000)
        if thread.is_alive():
            _logger.warning(
                "event=save_not_awaited step=%d its save has not ended within %g s of the end of the process",
                step,
                END_S,
            )
