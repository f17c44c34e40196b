"""Process groups of worlds that are over, and how they go without a wait.

Two facts of PyTorch 2.13:

1. The destructor of DistributedDataParallel's reducer holds the GIL. If it drops the last reference to a gloo group, it waits for
   the group's thread, which may wait for the GIL to let go of a finished piece of work: a deadlock (seen once in a few dozen
   worlds). So groups are kept until the next world begins; Python's own reference is dropped without the GIL.
2. The destructor of a gloo group waits for every collective that was begun in it. One whose peer has died may wait for the group's timeout,
   half an hour, and nothing wakes it: gloo has forgotten its send (process_group.py, fact 6; one death in two hundred amid asynchronous
   collectives). So neither the main thread nor the interpreter's end may be what drops the last reference.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable


class EndedGroups:
    """The groups of the last world, in the hands of a thread that nobody waits for."""

    def __init__(self) -> None:
        """None yet."""
        self._next_world = threading.Event()

    def keep(self, groups: Iterable[object]) -> None:
        """Keep them until the next world begins; where none does, until the process has ended."""
        held = [*groups]
        threading.Thread(
            target=_hold, args=(held, self._next_world), name="recovery-ended-groups", daemon=True
        ).start()

    def let_go(self) -> None:
        """The next world begins: their threads and descriptors go, each group's when its last collective has ended."""
        self._next_world.set()
        self._next_world = threading.Event()


def _hold(groups: list[object], next_world: threading.Event) -> None:
    next_world.wait()
    groups.clear()
