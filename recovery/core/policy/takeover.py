"""Who takes over a rank that is lost?

Three questions, each answered by a table or an order: is this seat to be given away, which standby is asked for it, and does what that
standby can read suffice. tests/core/test_takeover_policy.py walks every combination and finds exactly one row each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

import msgspec

from recovery.core.ids import NodeId
from recovery.core.messages import HeldCheckpoint
from recovery.core.policy.ranks import natural_key
from recovery.core.records import JobState, NodeState

# --- which seats --------------------------------------------------------------------------------------------------------


class Vacancy(str, Enum):
    """What becomes of a seat."""

    NOT = "not"
    """It stays with its holder, or nobody is waited for."""
    AT_ONCE = "at_once"
    """It has no rank yet, so there are no files to look for: whoever is there sits down."""
    OFFER = "offer"
    """A standby is asked which of the rank's files it can read."""


class SeatRow(msgspec.Struct, frozen=True):
    """One row; each column is the set of values that it covers."""

    holder: frozenset[NodeState]
    job: frozenset[JobState]
    has_rank: frozenset[bool]
    vacancy: Vacancy

    def matches(self, holder: NodeState, job: JobState, *, has_rank: bool) -> bool:
        """Is it one of this row's?"""
        return holder in self.holder and job in self.job and has_rank in self.has_rank


def _seat(
    holder: tuple[NodeState, ...], job: tuple[JobState, ...], has_rank: tuple[bool, ...], vacancy: Vacancy
) -> SeatRow:
    return SeatRow(frozenset(holder), frozenset(job), frozenset(has_rank), vacancy)


_HERE = (NodeState.LIVE, NodeState.SUSPECT)
_GONE = (NodeState.LOST, NodeState.LEFT)
_ANY_JOB = tuple(JobState)
_WAITING = (JobState.FORMING, JobState.INTERRUPTED)
_FORMING = (JobState.FORMING,)
_NOT_WAITING = tuple(state for state in JobState if state not in _WAITING)

# fmt: off
SEATS: tuple[SeatRow, ...] = (
    #     holder                job                       has a rank       what becomes of the seat
    # Who may still come back keeps its place.
    _seat(_HERE,                _ANY_JOB,                 (True, False),   Vacancy.NOT),
    # While all ranks train, and when the job is over, nobody is waited for.
    _seat(_GONE,                _NOT_WAITING,             (True, False),   Vacancy.NOT),
    _seat(_GONE,                _WAITING,                 (True,),         Vacancy.OFFER),
    # A place of a job that forms belongs to whoever comes; who left in the run before this one comes back under the same id.
    _seat((NodeState.LOST,),    _FORMING,                 (False,),        Vacancy.AT_ONCE),
    _seat((NodeState.LEFT,),    _FORMING,                 (False,),        Vacancy.NOT),
    # A formed job has given every rank: who has none is no member of it.
    _seat(_GONE,                (JobState.INTERRUPTED,),  (False,),        Vacancy.NOT),
)
# fmt: on


def vacancy(holder: NodeState, job: JobState, *, has_rank: bool) -> Vacancy:
    """Look up what becomes of a seat.

    Args:
        holder: the state of the node that holds its name.
        job: the job's.
        has_rank: whether the holder was given a rank.
    """
    return next(row.vacancy for row in SEATS if row.matches(holder, job, has_rank=has_rank))


# --- who is asked -------------------------------------------------------------------------------------------------------


class Candidate(msgspec.Struct, frozen=True):
    """A standby that could be asked."""

    node_id: NodeId
    host: str
    seat: str = ""
    """The vacant seat for which it was started; empty: any."""


def next_candidate(
    standbys: Iterable[Candidate], declined: Collection[NodeId], *, seat: str, host: str
) -> Candidate | None:
    """Choose whom to ask: who was started for the seat, then on the host of the lost one, where its files lie; then by id.

    Who was started for another vacant seat is left for that one: nobody else may be able to read its files.

    Args:
        standbys: who is connected and was not asked for another seat.
        declined: who could not take this seat. None of them is asked again until something changes.
        seat: the vacant one.
        host: where the lost one ran.
    """
    open_to = (one for one in standbys if one.node_id not in declined and one.seat in ("", seat))
    return min(
        open_to,
        key=lambda one: (one.seat != seat, one.host != host, natural_key(one.node_id)),
        default=None,
    )


# --- what an answer must hold -------------------------------------------------------------------------------------------


class Needed(str, Enum):
    """What the plan will ask of the rank."""

    NOTHING = "nothing"
    """No step is held by all ranks."""
    A_STEP = "a_step"
    """All ranks hold it, as far as the scheduler knows."""


class Shown(str, Enum):
    """What the answer says of that step."""

    THAT_FILE = "that_file"
    ANOTHER_FILE = "another_file"
    """A file of the step that is not the one the rank has reported."""
    NO_FILE = "no_file"


class AnswerRow(msgspec.Struct, frozen=True):
    """One row; each column is the set of values that it covers."""

    needed: frozenset[Needed]
    shown: frozenset[Shown]
    takes: bool

    def matches(self, needed: Needed, shown: Shown) -> bool:
        """Is it one of this row's?"""
        return needed in self.needed and shown in self.shown


# fmt: off
ANSWERS: tuple[AnswerRow, ...] = (
    #         needed                         shown                                                 it takes the rank
    AnswerRow(frozenset({Needed.NOTHING}),   frozenset(Shown),                                     takes=True),
    AnswerRow(frozenset({Needed.A_STEP}),    frozenset({Shown.THAT_FILE}),                         takes=True),
    # With an older step everybody would lose steps that another standby, or the lost one itself, can still bring.
    AnswerRow(frozenset({Needed.A_STEP}),    frozenset({Shown.ANOTHER_FILE, Shown.NO_FILE}),       takes=False),
)
# fmt: on


def fault_of(needed: HeldCheckpoint | None, held: Iterable[HeldCheckpoint]) -> str:
    """Say why an answer does not suffice; empty: it does.

    Args:
        needed: the rank's file of the newest step that all ranks hold; None: there is no such step.
        held: what the standby can read of the rank, of the lineage.
    """
    by_step = {one.step: one for one in held}
    shown = Shown.NO_FILE
    if needed is not None and needed.step in by_step:
        is_that = by_step[needed.step].digest == needed.digest
        shown = Shown.THAT_FILE if is_that else Shown.ANOTHER_FILE
    wanted = Needed.NOTHING if needed is None else Needed.A_STEP
    if needed is None or next(row.takes for row in ANSWERS if row.matches(wanted, shown)):
        return ""
    if shown is Shown.ANOTHER_FILE:
        return f"its file of step {needed.step} is not the one that the rank has saved"
    newest = max(by_step, default=0)
    return f"it cannot read the rank's file of step {needed.step}; its newest is {f'step {newest}' if newest else 'none'}"
