"""What follows from what a stimulus has shown: drawn in one place, in one order, once after each stimulus.

Handlers answer their sender and note facts (`pending_facts.py`, and what they change of nodes, slots and index). Each step here looks at the state
alone, so it may be asked at any time: the table says what makes it due, and where there is nothing to do it gives nothing. Steps are repeated
until none of them gives anything, since a later one may note a fact (a rank that is handed over ends its generation).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from recovery.core import messages as m
from recovery.core.records import JobState
from recovery.core.scheduler import barrier_ends, training_end
from recovery.core.scheduler.checkpoints import copying, uploading
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.generations import change, plan_messages
from recovery.core.scheduler.job_states import WAITING
from recovery.core.scheduler.membership import liveness, quorum, ready_reports, takeover
from recovery.core.scheduler.pending_facts import Facts
from recovery.core.scheduler.state import SchedulerState

_Fact = TypeVar("_Fact")


class Step(NamedTuple):
    """Something that may follow."""

    is_due: Callable[[SchedulerState], bool]
    """Can it follow from this state? Asked behind each stimulus, so it looks at no node by itself."""
    follow: Callable[[SchedulerState, int], list[SchedulerEffect]]


def settle(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """Draw what follows, in order."""
    effects: list[SchedulerEffect] = []
    while more := _round(state, now_ms):
        effects += more
    # Nothing follows from an order, so it comes last, once.
    effects += copying.order(state) if _may_order_copies(state) else []
    return [*effects, *uploading.order(state)] if _may_order_uploads(state) else effects


def _round(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    effects: list[SchedulerEffect] = []
    for step in ORDER:
        if state.store_rebuild.ends_scheduler:
            return effects
        if step.is_due(state):
            effects += step.follow(state, now_ms)
    return effects


def _each(
    kind: Callable[[Facts], list[_Fact]],
    follow: Callable[[SchedulerState, _Fact, int], list[SchedulerEffect]],
) -> Step:
    """The step that takes the facts of a kind, in order, and draws what follows from each."""

    def follow_all(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
        noted = kind(state.facts)
        facts = list(noted)
        noted.clear()
        return [effect for fact in facts for effect in follow(state, fact, now_ms)]

    return Step(lambda state: bool(kind(state.facts)), follow_all)


def _stops_all(state: SchedulerState) -> bool:
    return state.barrier is not None and state.barrier.is_under_way


def _ends_training(state: SchedulerState) -> bool:
    return state.barrier is not None and state.barrier.is_open and state.barrier.ends_training


def _may_offer(state: SchedulerState) -> bool:
    slots, vacancies = state.slots[m.Role.WORKER], state.vacancies
    if vacancies.offers:
        return True
    may_be_asked = bool(slots.standbys or vacancies.pending_failure)
    return may_be_asked and state.job.state in WAITING and slots.absent > 0


def _all_done(state: SchedulerState) -> bool:
    return state.job.state is JobState.RUNNING and state.slots[m.Role.WORKER].all_done


def _all_ready(state: SchedulerState) -> bool:
    return state.job.state in WAITING and quorum.all_ranks_ready(state)


def _may_order_copies(state: SchedulerState) -> bool:
    copies = state.copying
    return state.job.state is JobState.RUNNING and bool(copies.due or copies.due_in_memory or copies.rescan)


def _may_order_uploads(state: SchedulerState) -> bool:
    return state.job.state is JobState.RUNNING and state.uploading.rescan


ORDER: tuple[Step, ...] = (
    # A generation that cannot go on ends, before anything is said to nodes that have come or can follow the next plan.
    _each(lambda facts: facts.failures, change.interrupt),
    # A node that is not started again is waited for no more.
    _each(lambda facts: facts.given_up, liveness.give_up),
    # A node that has connected learns where the job stands.
    _each(lambda facts: facts.arrivals, plan_messages.catch_up),
    # What ranks hold counts for the next plan.
    _each(lambda facts: facts.reports, ready_reports.take_report),
    # A barrier is given up, or what all ranks stop for follows: a rank is handed over, or the job ends.
    Step(_stops_all, barrier_ends.advance),
    # So does the end of training that a script has asked for.
    Step(_ends_training, training_end.advance),
    # Vacant slots are offered.
    Step(_may_offer, takeover.offer_vacant),
    # All ranks are done, or all are ready: the job ends, or its next generation begins.
    Step(_all_done, change.end_training),
    Step(_all_ready, change.begin_generation),
)
"""The steps, in their order. Copies and uploads are ordered behind them."""
