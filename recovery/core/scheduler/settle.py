"""What follows from what a stimulus has shown: drawn in one place, in one order, once after each stimulus.

Handlers answer their sender and note facts (`pending_facts.py`, and what they change of nodes, slots and index). Each step here looks at the state
alone, so it may be asked at any time: where there is nothing to do it gives nothing. Steps are repeated until none of them gives anything,
since a later one may note a fact (a rank that is handed over ends its generation).
"""

from __future__ import annotations

from collections.abc import Callable

from recovery.core.scheduler import drain, planned_end
from recovery.core.scheduler.checkpoints import copying
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.generations import change, plan_messages
from recovery.core.scheduler.membership import liveness, ready_reports, takeover
from recovery.core.scheduler.pending_facts import taken
from recovery.core.scheduler.state import SchedulerState


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


def _failures(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """A generation that cannot go on ends, before anything is said to nodes that have come or can follow the next plan."""
    return [
        effect
        for failure in taken(state.facts.failures)
        for effect in change.interrupt(state, failure, now_ms)
    ]


def _given_up(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """A node that is not started again is waited for no more."""
    return [
        effect
        for given_up in taken(state.facts.given_up)
        for effect in liveness.give_up(state, given_up.node, given_up.reason, now_ms)
    ]


def _arrivals(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """A node that has connected learns where the job stands."""
    return [
        effect
        for arrival in taken(state.facts.arrivals)
        for effect in plan_messages.catch_up(state, arrival.node, arrival.register, now_ms)
    ]


def _reports(state: SchedulerState, _now_ms: int) -> list[SchedulerEffect]:
    """What ranks hold counts for the next plan."""
    return [
        effect
        for report in taken(state.facts.reports)
        for effect in ready_reports.take_report(state, report.node, report.ready)
    ]


ORDER: tuple[Callable[[SchedulerState, int], list[SchedulerEffect]], ...] = (
    # Membership: which nodes are lost, which are here, what they hold.
    _failures,
    _given_up,
    _arrivals,
    _reports,
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
