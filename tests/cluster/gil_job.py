"""small_job.py with one more thing to do, on rank 1: hang inside C code that keeps the interpreter's lock, or be stopped."""

from __future__ import annotations

import ctypes
import os
import signal

import train

from recovery import thread_stacks

_MUTEX_BYTES = 256
"""More than a pthread_mutex_t has on any platform; all zeros is a mutex that nobody holds."""


def _hold_the_interpreter() -> None:
    """Lock one mutex twice: no signal ends that wait, and PyDLL does not release the interpreter's lock meanwhile."""
    if os.environ["RANK_ID"] != "1":
        return
    mutex = ctypes.create_string_buffer(_MUTEX_BYTES)
    libc = ctypes.PyDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def _wait_for_a_signal() -> None:
    """The same, until a signal comes that is not blocked here; the one that asks for stacks comes to another thread."""
    if os.environ["RANK_ID"] == "1":
        signal.pthread_sigmask(signal.SIG_BLOCK, {thread_stacks.SIGNAL})
        ctypes.PyDLL(None).pause()


def _stop() -> None:
    if os.environ["RANK_ID"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)


# train is the copy of small_job.py beside this file.
train.DEEDS.update(  # type: ignore[attr-defined]  # mypy reads another module of this name
    pause=_wait_for_a_signal, hold=_hold_the_interpreter, stop=_stop
)

if __name__ == "__main__":
    train.test_train()
