"""MindSpore's own scheduler of this process's world.

It takes a second and more to import MindSpore. So rank 0 starts it as soon as it knows that it is rank 0, often while it still waits
for a killed peer to be let in, and tells it the world's port when the plan is there.
"""

from __future__ import annotations

import threading

from recovery.training import hooks
from recovery.training.foreign_scheduler import ForeignScheduler

_early: list[ForeignScheduler] = []
_starting = threading.Lock()


def own_scheduler() -> ForeignScheduler:
    """The one of this process."""
    with _starting:
        if not _early:
            _early.append(ForeignScheduler())
        return _early[0]


def _on_joined(rank: int | None) -> None:
    if rank == 0:
        own_scheduler()


hooks.joined.append(_on_joined)
