"""Blocking calls of an event loop, also after the script has ended.

A script that called `recovery.init()` waits for its peers in an atexit handler, and the end of a job waits there for the last upload. By then
Python has shut every executor down, but a name may still have to be looked up, a client to be made, and checkpoints to be found.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from typing_extensions import override

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Calls(ThreadPoolExecutor):
    """Threads as long as Python gives any; then in the caller's own, which has nothing else to do."""

    @override
    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        done: Future[_T] = Future()
        begun = threading.Lock()

        def call() -> None:
            if not begun.acquire(blocking=False) or not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - the caller's future carries it
                done.set_exception(error)

        try:
            super().submit(call)
        except RuntimeError:
            # The executor is shut down, or no new thread can start. Then the call lies in the queue all the same, and a thread that was
            # busy takes it: the one that begins first makes it, once.
            call()
        return done
