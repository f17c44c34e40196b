"""Blocking calls of an event loop, also after the script has ended, and never longer than the process.

A script that called `recovery.init()` waits for its peers in an atexit handler, and the end of a job waits there for the last upload. By then
Python has shut every executor of its own down, but a name may still have to be looked up, a client to be made, and checkpoints to be found.
Before it does so it waits for what their threads are at, and a name server or a disk that has stopped answering holds them for ever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from typing_extensions import override

_P = ParamSpec("_P")
_T = TypeVar("_T")
_IDLE_S = 1.0
"""How long a thread waits for its next call. A file comes in thousands of pieces, each a call of some 100 us; to start a thread costs as much."""


class Calls(ThreadPoolExecutor):
    """Daemon threads, as long as Python gives any; then the caller's own, which has nothing else to do. An event loop takes no other class."""

    def __init__(self, max_workers: int = 32, thread_name_prefix: str = "") -> None:
        """Start none yet.

        Args:
            max_workers: at most so many threads; more calls wait.
            thread_name_prefix: their name.
        """
        super().__init__(max_workers, thread_name_prefix)
        self._most, self._name = max_workers, thread_name_prefix or None
        self._calls: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._running = self._idle = 0

    @override
    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        done: Future[_T] = Future()
        with self._changed:
            self._calls.append(partial(_carry_out, done, partial(fn, *args, **kwargs)))
            starts = self._idle < len(self._calls) and self._running < self._most
            self._running += starts
            self._changed.notify()
        if starts:
            try:
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            except RuntimeError:
                # No new thread can start, for the system has none to give or the interpreter ends.
                self._work(idle_s=0)
        return done

    def _work(self, idle_s: float = _IDLE_S) -> None:
        while (call := self._next(idle_s)) is not None:
            call()

    def _next(self, idle_s: float) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._calls, idle_s)
            self._idle -= 1
            if self._calls:
                return self._calls.popleft()
            self._running -= 1
            return None


def _carry_out(done: Future[Any], call: Callable[[], object]) -> None:
    if done.set_running_or_notify_cancel():
        try:
            done.set_result(call())
        except Exception as error:  # noqa: BLE001 - the caller's future carries it
            done.set_exception(error)
