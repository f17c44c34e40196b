"""Ways in which the main thread of a rank comes no further. JOB_HANG names one, the rank, and the step from which on; a job does it once."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

HANG = os.environ.get("JOB_HANG", "")
"""`loop 1 20`: rank 1 behind step 20."""
_LONG_S = 1_000_000
_HUNG = Path("hung")
"""Made as the rank begins to hang, so that the process behind it goes on."""


class Kind(NamedTuple):
    """One way."""

    where: str
    """The moment of the script (moments.py)."""
    hang: Callable[[], None]
    is_silent: bool = False
    """The whole process is silent, so its lease ends."""


def _sleep() -> None:
    time.sleep(_LONG_S)


def _loop() -> None:
    while True:
        pass


def _lock() -> None:
    """Two threads, two locks, each has one and waits for the other."""
    one, two, has_two = threading.Lock(), threading.Lock(), threading.Event()

    def other() -> None:
        with two:
            has_two.set()
            one.acquire()

    with one:
        threading.Thread(target=other, daemon=True).start()
        has_two.wait()
        two.acquire()


def _write() -> None:
    """Nobody reads what it writes."""
    _, end = os.pipe()
    size = fcntl.fcntl(end, fcntl.F_GETPIPE_SZ)
    os.write(end, bytes(size))
    os.write(end, b"0")


def _hold_interpreter() -> None:
    """In C, without giving up the lock of the interpreter."""
    ctypes.PyDLL(None).sleep(_LONG_S)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


KINDS = {
    "loader": Kind("load", _sleep),
    "loop": Kind("compute", _loop),
    "locks": Kind("compute", _lock),
    "pipe": Kind("compute", _write),
    "save": Kind("save", _write),
    "interpreter": Kind("compute", _hold_interpreter, is_silent=True),
    "stopped": Kind("compute", _stop, is_silent=True),
    "skipped": Kind("backward", lambda: None),
}
"""The eighth leaves out its part of a collective, and goes on."""
SLOW_SAVE = "slow_save"
_ALL = {**KINDS, SLOW_SAVE: Kind("save", lambda: time.sleep(20))}
"""With what is no hang."""


def is_hung(where: str, rank: int, step: int) -> bool:
    """Hang, if this is the moment. True: it was, and the rank goes on.

    Args:
        where: the moment.
        rank: of the world; below 0: not known yet.
        step: the last one that it has done.
    """
    kind, _, place = HANG.partition(" ")
    if not kind or _ALL[kind].where != where:
        return False
    of_rank, from_step = map(int, place.split())
    if rank != of_rank or step < from_step:
        return False
    try:
        _HUNG.touch(exist_ok=False)
    except FileExistsError:
        return False
    _ALL[kind].hang()
    return True
