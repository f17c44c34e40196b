"""A store that was built again by an earlier release, from what lay in the recovery path: its job forms again with the ranks that it has given."""

from __future__ import annotations

import msgspec

from recovery.core import messages as m
from recovery.core.records import JobRecord, JobState, NodeState
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, _key
from tests.core.standbys import answer, job, row, standby

LEASE_MS = 31_000


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
