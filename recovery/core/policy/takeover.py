"""Which standby takes over a rank that is lost?

Three questions, each answered by a table or an order: is this slot to be given away, which standby is asked for it, and does what that
standby can read suffice. tests/core/test_takeover_policy.py walks every combination and finds one row each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum

import msgspec

from recovery.core.ids import NodeId
from recovery.core.messages import HeldCheckpoint
from recovery.core.policy.ranks import natural_key
from recovery.core.records import JobState, NodeState

# --- which slots --------------------------------------------------------------------------------------------------------


class Vacancy(str, Enum):
    """What becomes of a slot."""

    NOT = "not"
    """It stays with its holder, or nobody is waited for."""
    AT_ONCE = "at_once"
    """It has no rank yet, so there are no files to look for: any standby that is there takes it."""
    OFFER = "offer"
    """A standby is asked which of the rank's files it can read."""


class SlotRow(msgspec.Struct, frozen=True):
    """One row; each column is the set of values that it covers."""

    holder: frozenset[NodeState]
    job: frozenset[JobState]
    has_rank: frozenset[bool]
    vacancy: Vacancy

    def matches(self, holder: NodeState, job: JobState, *, has_rank: bool) -> bool:
        """Is it one of this row's?"""
        return holder in self.holder and job in self.job and has_rank in self.has_rank


def _slot(
    holder: tuple[NodeState, ...], job: tuple[JobState, ...], has_rank: tuple[bool, ...], vacancy: Vacancy
) -> SlotRow:
    return SlotRow(frozenset(holder), frozenset(job), frozenset(has_rank), vacancy)


_HERE = (NodeState.LIVE, NodeState.SUSPECT)
_GONE = (NodeState.LOST, NodeState.LEFT)
_ANY_JOB = tuple(JobState)
_WAITING = (JobState.FORMING, JobState.INTERRUPTED)
_FORMING = (JobState.FORMING,)
_NOT_WAITING = tuple(state for state in JobState if state not in _WAITING)

# fmt: off
SLOTS: tuple[SlotRow, ...] = (
    #     holder                job                       has a rank       what becomes of the slot
    # A node that may still come back keeps its slot.
    _slot(_HERE,                _ANY_JOB,                 (True, False),   Vacancy.NOT),
    # While all ranks train, and when the job is over, nobody is waited for.
    _slot(_GONE,                _NOT_WAITING,             (True, False),   Vacancy.NOT),
    _slot(_GONE,                _WAITING,                 (True,),         Vacancy.OFFER),
    # A slot of a job that forms belongs to any node that comes; one that left in the run before comes back under the same id.
    _slot((NodeState.LOST,),    _FORMING,                 (False,),        Vacancy.AT_ONCE),
    _slot((NodeState.LEFT,),    _FORMING,                 (False,),        Vacancy.NOT),
    # A formed job has given every rank: a node that has none is no member of it.
    _slot(_GONE,                (JobState.INTERRUPTED,),  (False,),        Vacancy.NOT),
)
# fmt: on


def vacancy(holder: NodeState, job: JobState, *, has_rank: bool) -> Vacancy:
    """Look up what becomes of a slot whose holder is in this state."""
    return next(row.vacancy for row in SLOTS if row.matches(holder, job, has_rank=has_rank))


# --- which standby is asked -------------------------------------------------------------------------------------------


class Candidate(msgspec.Struct, frozen=True):
    """A standby that could be asked."""

    node_id: NodeId
    host: str
    is_warm: bool = True
    """Its imports and its framework are ready: it has said that it waits for a plan."""
    comes_for: str = ""
    """The slot whose rank it was started for, while nobody has taken that one; empty: any."""


class Wanted(msgspec.Struct, frozen=True):
    """A slot that somebody is wanted for."""

    slot: str
    host: str
    """Where the lost one ran."""


def next_candidate(
    wanted: Wanted, standbys: Iterable[Candidate], declined: Collection[NodeId]
) -> Candidate | None:
    """Choose a standby to ask: one that is warm; that comes for this slot; on its host, where its files lie; by id, worker_2 before worker_10.

    One that comes for another slot is not asked: then that slot would wait, and nobody is started for it any more.

    Args:
        wanted: the slot.
        standbys: those that are connected and were not asked for another slot.
        declined: those that could not take this slot. None of them is asked again until something changes.
    """
    open_to = (
        standby
        for standby in standbys
        if standby.node_id not in declined and standby.comes_for in ("", wanted.slot)
    )
    return min(
        open_to,
        key=lambda standby: (
            not standby.is_warm,
            standby.comes_for != wanted.slot,
            standby.host != wanted.host,
            natural_key(standby.node_id),
        ),
        default=None,
    )


# --- what an answer must hold -------------------------------------------------------------------------------------------


class Match(str, Enum):
    """What the answer says of the step that the plan will ask of the rank."""

    NOTHING_WANTED = "nothing_wanted"
    """No step is held by all ranks."""
    SAME_FILE = "same_file"
    """It holds the rank's file of it."""
    ANOTHER_FILE = "another_file"
    """It holds a file of the step that is not the one the rank has reported."""
    NO_FILE = "no_file"


TAKES_RANK = {
    Match.NOTHING_WANTED: True,
    Match.SAME_FILE: True,
    # With an older step everybody would lose steps that another standby, or the lost one itself, can still bring.
    Match.ANOTHER_FILE: False,
    Match.NO_FILE: False,
}


def violation(needed: HeldCheckpoint | None, held: Iterable[HeldCheckpoint]) -> str:
    """Say why an answer does not suffice; empty: it does.

    Args:
        needed: the rank's file of the newest step that all ranks hold; None: there is no such step.
        held: what the standby can read of the rank, of the lineage.
    """
    by_step = {checkpoint.step: checkpoint for checkpoint in held}
    match = _match(needed, by_step)
    if needed is None or TAKES_RANK[match]:
        return ""
    if match is Match.ANOTHER_FILE:
        return f"its file of step {needed.step} is not the one that the rank has saved"
    newest = max(by_step, default=0)
    return f"it cannot read the rank's file of step {needed.step}; its newest is {f'step {newest}' if newest else 'none'}"


def _match(needed: HeldCheckpoint | None, by_step: Mapping[int, HeldCheckpoint]) -> Match:
    if needed is None:
        return Match.NOTHING_WANTED
    if needed.step not in by_step:
        return Match.NO_FILE
    return Match.SAME_FILE if by_step[needed.step].digest == needed.digest else Match.ANOTHER_FILE
