"""A scheduler looks at its whole state now and then: what cannot be ends it before it is written."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.ids import ConnectionId, NodeId
from recovery.core.records import JobRecord
from recovery.core.rules import Rules
from recovery.core.scheduler.machine import STIMULI_PER_CHECK
from tests.core.desk import Desk, running_workers


@pytest.fixture
def desk() -> Desk:
    return Desk(Rules(worker_count=2), checked=False)


def _spoil(desk: Desk) -> None:
    """Somebody speaks on a connection that no node has."""
    desk.machine.check()
    desk.machine.state.speakers[ConnectionId(999)] = NodeId("worker_0")


def test_state_that_cannot_be_is_found_within_ten_stimuli_of_each_node(desk: Desk) -> None:
    workers = running_workers(desk)
    _spoil(desk)
    beat = m.Heartbeat(sequence=1, generation=workers[0].generation, step=1)

    for _ in range(2 * STIMULI_PER_CHECK - 1):
        workers[0].send(beat)
    with pytest.raises(AssertionError, match="belongs to exactly one node"):
        workers[0].send(beat)


def test_state_that_cannot_be_begins_no_generation(desk: Desk) -> None:
    workers = running_workers(desk)
    _spoil(desk)
    workers[0].send(m.CollectiveFailed(generation=workers[0].generation, step=1, reason="reset"))
    workers[0].ready()

    with pytest.raises(AssertionError, match="belongs to exactly one node"):
        workers[1].ready()

    assert desk.row(JobRecord)[0].generation == 1, "the next plan is neither written nor sent"
    assert workers[0].last(m.Rollback).generation == 1
