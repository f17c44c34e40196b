"""How many rows that are only history stay in a store? What a start, a plan or a rebuild could need is none of them, and always stays.

The store carries it out (`recovery/store/thinning.py`).
"""

from __future__ import annotations

from enum import Enum

from recovery.core.records import EventKind, EventRecord


class History(Enum):
    """A kind of rows that are only history. Its value names it to people."""

    FAILURES = "events that are not of a save"
    SAVES = "events of saves"
    RETIRED = "checkpoints that the index let go"
    COPIES = "copies that are gone"
    INCARNATIONS = "earlier incarnations of nodes"
    PROCESSES = "processes of earlier incarnations"
    OWN_SAVES = "a worker's own notes of its saves"
    OWN_PLANS = "a worker's own notes of its plans"
    ACTIVITY = "a worker's own notes of when it trained"


KEPT = {
    History.FAILURES: 250_000,
    History.SAVES: 100_000,
    History.RETIRED: 100_000,
    History.COPIES: 100_000,
    History.INCARNATIONS: 20_000,
    History.PROCESSES: 20_000,
    History.OWN_SAVES: 1_000,
    History.OWN_PLANS: 1_000,
    History.ACTIVITY: 50_000,
}
"""The newest rows that stay, of each kind. One failure of 8 ranks is some 29 events: a year at one failure an hour fits. Ten times as much
would cost each start of the scheduler seconds, since SQLite looks at the whole file; a tenth would forget a failure of last month."""

OF_SAVES = frozenset(
    {
        EventKind.CHECKPOINT_COMMITTED,
        EventKind.CHECKPOINT_NOT_COMMON,
        EventKind.CHECKPOINT_NOT_SAVED,
        EventKind.CHECKPOINT_COPIED,
        EventKind.COPY_FAILED,
        EventKind.UPLOAD_FAILED,
    }
)
"""Events that come with each save: a bound of their own, for they are sixty times as many and would drive out the others."""


def slack(history: History) -> int:
    """How many more rows than the bound may have come before some are deleted: one deletion for many writes."""
    return KEPT[history] // 16


def piece(history: History) -> int:
    """How many rows are deleted at once at most: a tenth of a second of the writer's. More than have come meanwhile."""
    return max(10_000, 2 * slack(history))


def thinned(history: History, count: int) -> EventRecord:
    """Tell that so many rows were deleted: nothing goes without a word."""
    reason = f"the oldest {count} {history.value}: the newest {KEPT[history]} stay"
    return EventRecord(kind=EventKind.HISTORY_THINNED, reason=reason, details=history.name.lower())


def begins_later(event: EventRecord) -> bool:
    """Does it say that the story of the job has lost its beginning?"""
    return event.kind is EventKind.HISTORY_THINNED and event.details == History.FAILURES.name.lower()
