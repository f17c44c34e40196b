"""What a message costs does not depend on how many nodes there are: a job of 3,000 workers joins in three times that of 1,000."""

from __future__ import annotations

import sys
from types import FrameType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recovery.core import messages as m
from recovery.core.ids import NodeId
from recovery.core.policy.ranks import SeatedIds
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, begin

FEW, MANY = 100, 200
RATIO_MAX = 2.1
"""Twice as many workers cost twice as much; 3.8 times when each registration walks over all."""


def _lose_the_last(desk: Desk, workers: list[Worker]) -> None:
    """A standby is asked for its rank, and the last worker comes back before it answers; everybody has a new plan."""
    last = workers[-1]
    last.die()
    desk.at(desk.now + 600)
    for worker in workers[:-1]:
        worker.ready()
    assert isinstance(last.register(), m.Admitted)
    last.ready()
    for worker in workers:
        worker.follow()


def calls_to_join(count: int, name: str, standbys: int = 0) -> int:
    """Calls of functions until all of a job's workers are in, have a plan, have come back once, and are done."""
    desk = Desk(Rules(worker_count=count, standby_count=standbys), checked=False)
    workers = [Worker(desk, name.format(number)) for number in range(count)]
    for number in range(standbys):
        assert isinstance(Worker(desk, f"s{number}", standby=True).register(), m.Admitted)
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    earlier = sys.getprofile()
    sys.setprofile(note)
    try:
        begin(workers)
        if standbys:
            _lose_the_last(desk, workers)
        for worker in workers:
            worker.die()
            assert isinstance(worker.register(), m.Admitted)
        for worker in workers:
            worker.done()
    finally:
        sys.setprofile(earlier)
    assert desk.machine.state.job_ended
    return calls


@pytest.mark.parametrize("standbys", [0, 2], ids=["", "standbys"])
@pytest.mark.parametrize("name", ["worker_{}", "{}"], ids=["names", "ranks"])
def test_twice_as_many_workers_cost_the_scheduler_twice_as_much(name: str, standbys: int) -> None:
    ratio = calls_to_join(MANY, name, standbys) / calls_to_join(FEW, name, standbys)

    print(f"{FEW} to {MANY} workers: {ratio:.2f} times the calls")
    assert ratio < RATIO_MAX


def test_a_ready_worker_that_is_cut_off_is_not_counted_as_ready_until_it_is_back() -> None:
    desk = Desk(Rules(worker_count=2))
    first, second = Worker(desk, "worker_0"), Worker(desk, "worker_1")
    first.register()
    first.ready()
    first.die()
    second.register()
    second.ready()
    assert not second.hears(m.Rollback)

    assert isinstance(first.register(), m.Admitted)
    assert first.hears(m.Rollback) == second.hears(m.Rollback) == 1


@example([(True, "0"), (True, "00"), (False, "0")])
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["0", "00", "1", "2", "3", "a", "b", "c"]))))
def test_ids_that_come_and_go_are_judged_as_if_all_were_looked_at(moves: list[tuple[bool, str]]) -> None:
    seated, ids = dict[str, None](), SeatedIds()
    for comes, name in moves:
        if comes:
            seated[name] = None
            ids.add(NodeId(name))
        elif name in seated:
            del seated[name]
            ids.remove(NodeId(name))
    assert sorted(ids) == sorted(seated)
    for asks in ("0", "00", "1", "3", "a", "d"):
        others = [other for other in seated if other != asks]
        kinds = any(other.isdecimal() != asks.isdecimal() for other in others)
        same = asks.isdecimal() and any(other.isdecimal() and int(other) == int(asks) for other in others)
        fault = ids.fault_of(NodeId(asks), 3)
        assert (fault is not None) == (kinds or same or (asks.isdecimal() and int(asks) >= 3))
