"""Work that may take long, beside the scheduler's loop: no heartbeat waits for it, and no end of the process."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

_logger = logging.getLogger("recovery.scheduler")
_Outcome = TypeVar("_Outcome")


def start(name: str, work: Callable[[], _Outcome], done: Callable[[_Outcome], None]) -> None:
    """Begin it in a thread of its own. Called in the loop, which `done` is called in with what came of it, unless it has ended by then.

    Args:
        name: of the thread.
        work: raises nothing.
        done: takes its outcome.
    """
    loop = asyncio.get_running_loop()

    def run() -> None:
        outcome = work()
        try:
            loop.call_soon_threadsafe(done, outcome)
        except RuntimeError:
            _logger.debug("the loop has ended, what %s came to is dropped", name)

    threading.Thread(target=run, name=name, daemon=True).start()
