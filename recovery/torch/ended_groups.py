"""Process groups of worlds that are over, and how they go without a wait.

Four facts, three of PyTorch 2.13 and one of Python:

1. The destructor of DistributedDataParallel's reducer holds the GIL. If it drops the last reference to a gloo group, it waits for
   the group's thread, which may wait for the GIL to let go of a finished piece of work: a deadlock (seen once in a few dozen
   worlds). So groups are kept until the next world begins; Python's own reference is dropped without the GIL.
2. The destructor of a gloo group waits for every collective that was begun in it. One whose peer has died may wait for the group's timeout,
   half an hour, and nothing wakes it: gloo has forgotten its send (process_group.py, fact 6; one death in two hundred amid asynchronous
   collectives). So neither the main thread nor the interpreter's end may be what drops the last reference.
3. A thread of gloo that lets go of a tensor last, behind Python, waits for the GIL in a destructor. Where the interpreter is being finalized
   meanwhile, Python before 3.14 ends the thread there, and C++ answers with `terminate called without an active exception`: a process that
   has trained and saved all ends with -6 (seen once in some thousand ends, on a busy machine). So the interpreter's end waits for them, and
   for threads of ours that are in the destructor of a group: they come back to the GIL out of C++ as well.
4. What a world has left in a cycle (the modules of FSDP2, a script's own objects) has its group until Python collects it, in whatever thread
   allocates the object too many. So does the end of fact 3 come to that thread, and that of fact 2 to the collection of the interpreter's end.
   So behind the script nothing is collected but by the main thread, and a group that is still there stays until the process has ended.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import logging
import threading
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recovery import clock

_logger = logging.getLogger("recovery.torch")
_THREADS = ("pt_gloo_runloop", "gloo_tcp_loop")
"""As torch and gloo name them."""
_LOOK_S = 0.002
_IDLE_LOOKS = 5
"""One look is too few: who waits for the GIL sleeps as well, while another thread of Python has it (5 ms at a time)."""
_IDLE_LIMIT_MS = 10_000
"""Longer than a busy machine keeps a thread from its turn."""
_LETTING_GO_S = 2.0
"""How long the end of the process waits for destructors. One that waits for a collective which never ends does not come back at all."""


class EndedGroups:
    """The groups of the last world, in the hands of a thread that nobody waits for."""

    def __init__(self) -> None:
        """None yet."""
        self._next_world = threading.Event()
        self._is_exiting = False
        self._holders: list[threading.Thread] = []
        """Threads that hold groups of the last world."""
        self._letting_go: list[threading.Thread] = []
        """Threads that let go of those of earlier ones, as far as they were still at it when the last world began."""
        self._known: list[weakref.ref[object]] = []
        """All groups that something may still hold."""

    def watch_exit(self) -> None:
        """Before the interpreter is finalized, wait until no thread of a group has anything to let go of (fact 3)."""
        atexit.unregister(self._on_exit)
        atexit.register(self._on_exit)

    def keep(self, groups: Iterable[object]) -> None:
        """Keep them until the next world begins; where none does, until the process has ended."""
        held = [*groups]
        if self._is_exiting:
            # There is no next world, and Python 3.12 starts no thread any more.
            _hold_for_ever(held)
            wait_until_idle()
            return
        holder = threading.Thread(
            target=_hold, args=(held, self._next_world), name="recovery-ended-groups", daemon=True
        )
        holder.start()
        self._holders.append(holder)
        self._known.extend(map(weakref.ref, held))

    def let_go(self) -> None:
        """The next world begins: their threads and descriptors go, each group's when its last collective has ended."""
        self._next_world.set()
        self._next_world = threading.Event()
        self._letting_go = [holder for holder in (*self._letting_go, *self._holders) if holder.is_alive()]
        self._holders = []
        self._known = [known for known in self._known if known() is not None]

    def _on_exit(self) -> None:
        # A script that is its own loop ends its world in an exit handler of its own, which may come behind this one.
        self._is_exiting = True
        give_up_ms = clock.monotonic_ms() + int(_LETTING_GO_S * 1_000)
        gc.disable()
        _hold_for_ever([known() for known in self._known])
        while not _can_collect() and clock.monotonic_ms() < give_up_ms:
            time.sleep(_LOOK_S)  # noqa: TID251 - no event tells that another thread has collected, where it had begun before this exit
        for holder in self._letting_go:
            holder.join(max(0, give_up_ms - clock.monotonic_ms()) / 1_000)
        wait_until_idle()


def wait_until_idle(looks: int = _IDLE_LOOKS) -> None:
    """Wait, without the GIL, until gloo's threads sleep; ten seconds at most.

    Args:
        looks: in a row that must find them asleep. One is enough where a thread that waits for the GIL does no harm.
    """
    give_up_ms, idle_looks = clock.monotonic_ms() + _IDLE_LIMIT_MS, 0
    while idle_looks < looks:
        time.sleep(_LOOK_S)  # noqa: TID251 - no event tells that a thread of gloo has nothing to do
        idle_looks = 0 if _are_busy() else idle_looks + 1
        if clock.monotonic_ms() >= give_up_ms:
            _logger.warning(
                "event=groups_busy a thread of gloo is still at work %d s behind the end of training; the process ends without it",
                _IDLE_LIMIT_MS // 1_000,
            )
            return


def _are_busy() -> bool:
    for task in Path("/proc/self/task").iterdir():
        try:
            _, _, rest = (task / "stat").read_text().partition("(")
        except OSError:
            # It has ended.
            continue
        name, _, state = rest.rpartition(") ")
        if name in _THREADS and not state.startswith("S"):
            return True
    return False


def _hold_for_ever(groups: list[Any]) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(groups))


class _Cycle:
    """Goes when it is collected."""

    def __init__(self) -> None:
        self.itself = self


def _can_collect() -> bool:
    """False: another thread is collecting, and perhaps in the destructor of a group; Python begins no second collection meanwhile."""
    made = weakref.ref(_Cycle())
    gc.collect(0)
    return made() is None


def _hold(groups: list[object], next_world: threading.Event) -> None:
    next_world.wait()
    groups.clear()
