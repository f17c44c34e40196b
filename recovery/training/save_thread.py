"""The thread of one save at a time: whatever ends it is a checkpoint or a save that failed, and never nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from recovery.training.pending_checkpoint import PendingCheckpoint

_logger = logging.getLogger("recovery.training")


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

    @property
    def is_under_way(self) -> bool:
        """Was a save begun that was not waited for?"""
        return self._thread is not None

    def join(self) -> None:
        """Wait for the save under way."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
