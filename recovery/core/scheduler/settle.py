"""What follows from what a stimulus has shown: drawn in one place, in one order, once after each stimulus.

Handlers answer their sender and note facts (`pending_facts.py`, and what they change of nodes, slots and index). Each step here looks at the state
alone, so it may be asked at any time: where there is nothing to do it gives nothing. Steps are repeated until none of them gives anything,
since a later one may note a fact (a rank that is handed over ends its generation).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from recovery.core.scheduler import drain, planned_end
from recovery.core.scheduler.checkpoints import copying
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.generations import change, plan_messages
from recovery.core.scheduler.membership import liveness, ready_reports, takeover
from recovery.core.scheduler.pending_facts import Facts
from recovery.core.scheduler.state import SchedulerState

_Fact = TypeVar("_Fact")
_Step = Callable[[SchedulerState, int], list[SchedulerEffect]]


def settle(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """Draw what follows, in order."""
    effects: list[SchedulerEffect] = []
    while more := _round(state, now_ms):
        effects += more
    # Nothing follows from an order, so it comes last, once.
    return [*effects, *copying.order(state)]


def _round(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    effects: list[SchedulerEffect] = []
    for step in ORDER:
        if state.store_rebuild.ends_scheduler:
            return effects
        effects += step(state, now_ms)
    return effects


def _each(
    kind: Callable[[Facts], list[_Fact]],
    follow: Callable[[SchedulerState, _Fact, int], list[SchedulerEffect]],
) -> _Step:
    """The step that takes the facts of a kind, in order, and draws what follows from each."""

    def step(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
        noted = kind(state.facts)
        facts = list(noted)
        noted.clear()
        return [effect for fact in facts for effect in follow(state, fact, now_ms)]

    return step


ORDER: tuple[_Step, ...] = (
    # A generation that cannot go on ends, before anything is said to nodes that have come or can follow the next plan.
    _each(lambda facts: facts.failures, change.interrupt),
    # A node that is not started again is waited for no more.
    _each(lambda facts: facts.given_up, liveness.give_up),
    # A node that has connected learns where the job stands.
    _each(lambda facts: facts.arrivals, plan_messages.catch_up),
    # What ranks hold counts for the next plan.
    _each(lambda facts: facts.reports, ready_reports.take_report),
    # A planned departure goes on, or is given up.
    drain.advance,
    # The end of training that a script has asked for likewise.
    planned_end.advance,
    # Vacant slots are offered.
    takeover.offer_vacant,
    # All ranks are done, or all are ready: the job ends, or its next generation begins.
    change.end_if_all_done,
    change.begin_if_all_ready,
)
"""The steps, in their order. Copies are ordered behind them."""
