"""A store that is built again knows by which id a place is called, so that the launcher's first ids lead to their ranks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from recovery.core import messages as m
from recovery.core.ids import NodeId
from recovery.core.records import EventRecord, JobRecord, JobState, NodeState
from recovery.core.rules import Rules
from recovery.scheduler.store_rebuild import Traces, records_of
from tests.core.desk import Desk, Worker, _key, checkpoint
from tests.core.pasts import began, past
from tests.core.standbys import answer, job, row, slot, standby

LEASE_MS = 31_000


def rebuilt(*holders: tuple[str, m.JobHistory], standbys: int = 0) -> Desk:
    """A scheduler on the store that is made of what these have left behind."""
    pasts = {NodeId(name): known for name, known in holders}
    traces = Traces(path=Path("lost"), remains=(), pasts=pasts, nodes={}, unreadable=())
    desk = Desk(Rules(worker_count=2, standby_count=standbys))
    desk.rows = {_key(one): one for one in records_of(traces) if not isinstance(one, EventRecord)}
    desk.restart()
    return desk


def taken_over_by(name: str, **fields: object) -> tuple[tuple[str, m.JobHistory], ...]:
    """worker_0 had rank 0 up to step 10; this id since then, up to step 20."""
    both = (began(1, 0), began(2, 10))
    return (
        ("worker_0", past(0, 10)),
        (name, past(0, 20, generation=2, began=both, **fields)),
        ("worker_1", past(1, 20, generation=2, began=both)),
    )


@pytest.mark.parametrize("name", ["worker_0.2", "standby_0"])
def test_first_id_of_a_place_comes_back_to_its_rank(name: str) -> None:
    desk = rebuilt(*taken_over_by(name))
    assert job(desk).state is JobState.INTERRUPTED
    assert (row(desk, name).rank, slot(desk, name)) == (0, "worker_0" if name == "worker_0.2" else None)
    assert (row(desk, "worker_0").rank, slot(desk, "worker_0")) == (None, "")
    assert row(desk, "worker_0").state is NodeState.LOST

    first, second = Worker(desk, "worker_0"), Worker(desk, "worker_1")
    refused = first.register()
    assert isinstance(refused, m.Refused)
    assert (refused.code, refused.retry_after_ms) == ("NODE_ALIVE", 30_000), "its holder may still come back"
    desk.at(2 * LEASE_MS)
    assert isinstance(second.register(), m.Admitted)
    admitted = first.register()
    assert isinstance(admitted, m.Admitted)
    assert admitted.standby
    second.ready(checkpoint(20, generation=2, path="1/20"))
    answer(first, 20, of="0", rank=0, written_in=2)
    assert (first.follow().rank, second.follow().rank) == (0, 1)
    assert first.follow().step == 20


def test_place_is_named_by_its_first_id_where_only_the_fresh_one_has_left_a_trace() -> None:
    desk = rebuilt(("worker_0.2", past(0, 20)), ("worker_1", past(1, 20)))
    assert slot(desk, "worker_0.2") == "worker_0"
    assert slot(desk, "worker_1") is None


def test_place_of_a_process_that_is_called_by_its_address_has_that_name() -> None:
    desk = rebuilt(("10.0.0.7", past(0, 20)), ("10.0.0.8.2", past(1, 20)))
    assert slot(desk, "10.0.0.7") is None
    assert slot(desk, "10.0.0.8.2") == "10.0.0.8"
    fresh = Worker(desk, "10.0.0.7.2", replaces="10.0.0.7")
    fresh.register()
    desk.at(2 * LEASE_MS)
    assert isinstance(fresh.register(), m.Admitted)


def test_no_place_is_called_by_the_id_of_who_holds_another_one() -> None:
    # The two have changed places: each has left, and taken the rank of the other.
    both = (began(1, 0), began(2, 10))
    desk = rebuilt(
        ("worker_0", past(1, 20, generation=2, began=both)),
        ("worker_0.2", past(0, 20, generation=2, began=both)),
    )
    assert slot(desk, "worker_0.2") is None
    assert {one.rank for one in (row(desk, "worker_0"), row(desk, "worker_0.2"))} == {0, 1}
    desk.at(2 * LEASE_MS)


def test_rank_of_a_lost_one_is_given_to_no_second_id_while_a_job_forms_again() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=1))
    first, second = Worker(desk, "worker_0"), Worker(desk, "worker_1")
    for one in (first, second):
        one.register()
    for one in (first, second):
        one.ready()
    waits = standby(desk)
    second.die()
    desk.at(desk.now + 600)
    answer(waits)
    # The rows of a job that has given ranks and forms again: of worker_0 nothing is left.
    desk.rows = {key: one for key, one in desk.rows.items() if getattr(one, "node_id", None) != "worker_0"}
    desk.rows[_key(job(desk))] = new_state(desk, JobState.FORMING)
    desk.restart()
    desk.at(desk.now + 2 * LEASE_MS)
    assert (row(desk, "s0").state, row(desk, "s0").rank) == (NodeState.LOST, 1)
    admitted = Worker(desk, "worker_1").register()
    assert isinstance(admitted, m.Admitted)
    assert admitted.standby, "the rank of its place is offered to it, with its files"
    assert row(desk, "s0").rank == 1


def new_state(desk: Desk, state: JobState) -> JobRecord:
    return msgspec.structs.replace(job(desk), state=state)
