"""The worker processes of data loaders stay until the process that they load for has saved, where a system sends SIGTERM to all of a job's.

As torch starts them they die of any sender but their parent, and torch raises in the parent's main thread, wherever it is: no rank comes to the
step at which all save. So SIGTERM does nothing in a worker that is started while this process does something of its own on it. Its parent ends
it by SIGKILL, as multiprocessing would by SIGTERM; it ends by itself with its loader, and where its parent has died.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import util
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any
from weakref import WeakSet

from torch.utils.data import DataLoader

_started = WeakSet[BaseProcess]()
_changed = set[Callable[..., Any]]()


def keep(kind: type[DataLoader[Any]]) -> None:
    """Keep the workers of all loaders of a class. What makes their iterators is torch's own method, which subclasses may have in their way."""
    torchs = kind._get_iterator  # noqa: SLF001 - there is no public way that evaluation loops and trainers take too
    if torchs in _changed:
        return

    # Whoever asks whose method it is finds torch's.
    @functools.wraps(torchs)
    def get_iterator(loader: DataLoader[Any]) -> Any:
        return _begun(loader, torchs)

    _changed.add(get_iterator)
    setattr(kind, "_get_iterator", get_iterator)  # noqa: B010 - a method of torch's


def _begun(loader: DataLoader[Any], torchs: Callable[[DataLoader[Any]], Any]) -> Any:
    if not loader.num_workers or not callable(signal.getsignal(signal.SIGTERM)):
        return torchs(loader)
    user, before = loader.worker_init_fn, multiprocessing.active_children()
    loader.worker_init_fn = _WorkerBegin(user)
    # One that comes before a worker has its handler waits: a spawned one needs seconds.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        return torchs(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        loader.worker_init_fn = user
        for worker in set(multiprocessing.active_children()).difference(before):
            worker.terminate = worker.kill  # type: ignore[method-assign]  # torch's last means where one is stuck
            _started.add(worker)
        util.Finalize(None, _end, exitpriority=0)


def _end() -> None:
    """Before multiprocessing asks those that are left by SIGTERM and waits for them."""
    # torch's own handler would raise here.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for worker in multiprocessing.active_children():
        if worker in _started:
            worker.kill()


class _WorkerBegin:
    """Called first in a worker, behind torch's own handlers."""

    def __init__(self, user: Callable[[int], None] | None) -> None:
        """Then call the user's function."""
        self._user = user

    def __call__(self, worker: int) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _left_to_parent)
            signal.siginterrupt(signal.SIGTERM, False)
            os.register_at_fork(after_in_child=_reset_in_child)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if self._user is not None:
            self._user(worker)


def _left_to_parent(number: int, frame: FrameType | None) -> None:
    """Unlike SIG_IGN it is not handed on to programs that a data set starts."""


def _reset_in_child() -> None:
    if signal.getsignal(signal.SIGTERM) is _left_to_parent:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
