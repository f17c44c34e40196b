"""Is a process that ended started again? The policy, as a table of rows that are tried in order. Pure."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from recovery.core.policy.next_plan import SAME_ENDS_MAX
from recovery.errors import Cause

WINDOW_MS = 3_600_000
"""Relaunches are counted within the last hour."""
SHORT_ATTEMPT_MS = 10_000
"""A process that lasts no longer, twice in a row, is about to loop: each further short attempt makes its relaunch wait longer."""
_BACK_OFF_MS = (0, 0, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000)


class Next(str, Enum):
    """What follows."""

    DONE = "done"
    SURPLUS = "surplus"
    """Nobody waits for it: the world has no place for it, or it holds no rank. The job goes on without it."""
    RELAUNCH = "relaunch"
    FAIL = "fail"
    FAIL_LATE = "fail_late"
    """The job has finished, and its own script failed afterwards: its exit code is the launcher's. The others' scripts go on."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """One process as it ended."""

    status: int
    """Exit code; negative: the signal that killed it."""
    cause: Cause | None
    """What its exit code says of its next start; None: nothing."""
    world_full: bool
    """Was it refused because the world has all its ranks?"""
    was_member: bool
    """Was it ever let in? True where nobody knows."""
    handed_over: bool
    """Has it left as planned, with its rank going to a standby?"""
    asked_to_end: bool
    """Did SIGTERM end it, which its launcher has not sent?"""
    idle_ends: int
    """How many of its attempts SIGTERM has ended, up to this one and in a row, without a new step of the job."""
    training_done: bool
    """Had its job finished, with what was its part?"""
    needed: bool
    """Does the job wait for it? No: it holds no rank, as a standby, or because another has taken its rank."""
    first: bool
    """Was it its first start, and soon over?"""
    recovery_enabled: bool
    has_stepped: bool
    """Has any rank of the job ever applied a step? True where nobody can know."""
    repeats: bool
    """Did it end with the same tracebacks as its attempt before, or the same last line, and soon after its start?"""
    short_attempts: int
    """How many of its attempts, up to this one and without a longer one between, were short."""
    relaunched_ms: tuple[int, ...]
    """When this process was started again before, oldest first."""
    max_restarts: int
    unbegun_ms: int | None
    """For how long in a row none of its starts has begun: for want of processes, memory, descriptors, files; None: this one had begun."""
    patience_ms: int | None
    """How long that may be; None: as long as it takes."""
    now_ms: int


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What follows, and why."""

    next: Next
    after_ms: int
    reason: str
    code: str = ""
    """Of the error with which the job ends, where the process's exit code says nothing of that."""


class _Row(NamedTuple):
    when: Callable[[Ended], bool]
    next: Next
    reason: str
    code: str = ""


_TABLE: Sequence[_Row] = (
    _Row(lambda ended: ended.status == 0, Next.DONE, "it is done"),
    _Row(
        lambda ended: ended.world_full and not ended.was_member,
        Next.SURPLUS,
        "the job's workers are complete without it; it is not started again, and the job goes on",
    ),
    _Row(
        lambda ended: ended.handed_over,
        Next.RELAUNCH,
        "its rank is handed over as planned; it is started again",
    ),
    _Row(
        lambda ended: ended.training_done,
        Next.FAIL_LATE,
        "its training was done: nothing is started again, and the launcher ends with its exit code",
    ),
    _Row(
        lambda ended: not ended.recovery_enabled,
        Next.FAIL,
        "without MS_ENABLE_RECOVERY=1 the first failure ends the job",
    ),
    _Row(
        lambda ended: ended.cause is Cause.PERMANENT,
        Next.FAIL,
        "it said why by its exit code; the same command would end the same way",
    ),
    _Row(
        lambda ended: ended.cause is Cause.UNKNOWN and ended.first,
        Next.FAIL,
        "it was its first start, and it said why by its exit code; the same command would end the same way",
    ),
    _Row(
        lambda ended: ended.asked_to_end and ended.idle_ends >= SAME_ENDS_MAX,
        Next.FAIL,
        f"SIGTERM has ended it {SAME_ENDS_MAX} times in a row, and the job has made no new step; whatever sends it would end the next start, too",
        "JOB_FAILED",
    ),
    _Row(
        lambda ended: ended.asked_to_end,
        Next.RELAUNCH,
        "it was asked to end by SIGTERM; it is started again, which uses up no restart",
    ),
    _Row(
        lambda ended: ended.unbegun_ms is not None and not _waited_too_long(ended),
        Next.RELAUNCH,
        "it never began; it is tried again, which uses up no restart",
    ),
    _Row(
        lambda ended: ended.unbegun_ms is not None,
        Next.FAIL,
        "it never began, and none of its starts has within --cluster_time_out",
    ),
    _Row(
        lambda ended: _by_itself(ended) and not ended.has_stepped,
        Next.FAIL,
        "it ended by itself before the job's first step; starting it again would end the same way",
    ),
    _Row(
        lambda ended: _by_itself(ended) and ended.repeats,
        Next.FAIL,
        "it ended by itself in the same way as the time before, soon after its start",
    ),
    _Row(
        lambda ended: len(_recent(ended)) >= ended.max_restarts,
        Next.FAIL,
        "it was started again --max_restarts times within an hour",
    ),
    _Row(lambda ended: True, Next.RELAUNCH, "it is started again"),
)


def decide(ended: Ended) -> Decision:
    """The first row that fits; where it would end a job that does not wait for this process, the job goes on without it."""
    row = next(row for row in _TABLE if row.when(ended))
    if row.next is Next.FAIL and ended.recovery_enabled and not ended.needed:
        reason = f"{row.reason}; it holds no rank, so the job goes on without it"
        return Decision(next=Next.SURPLUS, after_ms=0, reason=reason)
    after_ms = 0
    if row.next is Next.RELAUNCH and not ended.handed_over:
        # A cause that has to go by first needs a while.
        place = ended.short_attempts + (ended.cause is not None)
        after_ms = _BACK_OFF_MS[min(place, len(_BACK_OFF_MS) - 1)]
    return Decision(next=row.next, after_ms=after_ms, reason=row.reason, code=row.code)


def as_surplus(decision: Decision) -> Decision:
    """The same end, after which the scheduler found another process for the rank."""
    reason = f"{decision.reason}; another process has its rank, so the job goes on without it"
    return Decision(next=Next.SURPLUS, after_ms=0, reason=reason)


def describe(status: int, *, kernel_message: str = "") -> str:
    """An exit status for people: `exit code 1`, `killed by SIGKILL`; what it was killed for only where the kernel has said it.

    Args:
        status: exit code; negative: the signal that killed it.
        kernel_message: what the kernel's log says of it; empty: nothing, or it cannot be read.
    """
    if status >= 0:
        return f"exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if -status != signal.SIGKILL or not kernel_message:
        return f"killed by {name}"
    return f"killed by {name} ({kernel_message})"


def exit_code_of(status: int) -> int:
    """As a shell shows it: 128 + n for signal n."""
    return status if status >= 0 else 128 - status


def _waited_too_long(ended: Ended) -> bool:
    return ended.patience_ms is not None and (ended.unbegun_ms or 0) >= ended.patience_ms


def _by_itself(ended: Ended) -> bool:
    """Did the script end it, by an exception of its own or by an exit before the end?"""
    return ended.status > 0 and ended.cause in (None, Cause.SCRIPT)


def _recent(ended: Ended) -> list[int]:
    return [at_ms for at_ms in ended.relaunched_ms if ended.now_ms - at_ms < WINDOW_MS]
