"""The timers of the worker's machine."""

from __future__ import annotations

from enum import Enum


class WorkerTimer(str, Enum):
    """What the machine has itself reminded of. Each is set at most once at a time."""

    DIAL = "dial"
    """The next dial is due: after a failed one, after connections that end at once, or when a refusal has run out."""
    HEARTBEAT = "heartbeat"
    """The next heartbeat is due."""
    SILENCE = "silence"
    """Nothing was heard of the scheduler for MS_RECEIVE_MSG_TIMEOUT, unless something was heard since the timer was set."""
    ABORT = "abort"
    """The interrupted main thread has had MS_ABORT_TIMEOUT to come back."""
    WAIT_NOTE = "wait_note"
    """What waits says what it waits for."""
    SHUTDOWN = "shutdown"
    """The grace period of a process that leaves is over, answered or not."""
    DEPART = "depart"
    """This process asked for its rank to be handed over, and leaves now if that has not happened."""
    REPORTS = "reports"
    """The last checkpoint reports have waited long enough for this worker's own store."""
