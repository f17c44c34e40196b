"""small_job.py with one more thing to do, on rank 1: hang for ever inside C code that keeps the interpreter's lock."""

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


train.DEEDS["pause"] = _wait_for_a_signal  # type: ignore[attr-defined]  # as below
train.DEEDS["hold"] = _hold_the_interpreter  # type: ignore[attr-defined]  # the copy of small_job.py beside it

if __name__ == "__main__":
    train.test_train()
