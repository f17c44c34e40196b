"""What a message costs does not depend on how many nodes there are, nor on how many saves and failures there were before."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recovery.core import messages as m
from recovery.core.ids import Generation, NodeId, RunId
from recovery.core.policy import rollback
from recovery.core.policy.ranks import SlotNames
from recovery.core.policy.retention import INDEXED_STEPS
from recovery.core.records import GenerationRecord
from recovery.core.rules import Rules
from tests.core.copiers import orders, ready, reports, server
from tests.core.desk import Desk, Worker, begin, checkpoint

FEW, MANY = 100, 200
A_HOST = 4
"""Workers of one host."""
RATIO_MAX = 2.1
"""Twice as many workers cost twice as much; 3.8 times when each registration walks over all."""
SAME = 1.1


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
    with counted() as calls:
        begin(workers)
        if standbys:
            _lose_the_last(desk, workers)
        for worker in workers:
            worker.die()
            assert isinstance(worker.register(), m.Admitted)
        for worker in workers:
            worker.done()
    assert desk.machine.state.job_ended
    return calls[0]


@contextmanager
def counted() -> Iterator[list[int]]:
    """Counts the calls of functions in a block; they are in the list behind it."""
    calls = 0
    found: list[int] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    earlier = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(earlier)
    found.append(calls)


@pytest.mark.parametrize("standbys", [0, 2], ids=["", "standbys"])
@pytest.mark.parametrize("name", ["worker_{}", "{}"], ids=["names", "ranks"])
def test_twice_as_many_workers_cost_the_scheduler_twice_as_much(name: str, standbys: int) -> None:
    ratio = calls_to_join(MANY, name, standbys) / calls_to_join(FEW, name, standbys)

    print(f"{FEW} to {MANY} workers: {ratio:.2f} times the calls")
    assert ratio < RATIO_MAX


class Saving:
    """A job on many hosts whose workers save, and whose copies arrive."""

    def __init__(self, count: int) -> None:
        self.desk = Desk(Rules(worker_count=count, checkpoint_copies=1, rejoin_window_ms=0), checked=False)
        self.workers = [
            server(self.desk, f"worker_{number}", f"host_{number // A_HOST}") for number in range(count)
        ]
        begin(self.workers)
        self.step = 0
        self.held: dict[str, m.HeldCheckpoint] = {}
        self.copies: dict[str, dict[int, list[m.HeldCheckpoint]]] = {}
        """The newest, by node id; copies also by rank."""

    def save(self, times: int = 1) -> None:
        """Each worker a step, and what was ordered of it is there."""
        for _ in range(times):
            self.step += 10
            for worker in self.workers:
                self.held[worker.node_id] = worker.save(self.step)
            for worker in self.workers:
                ordered = orders(worker)
                for order in ordered:
                    reports(worker, order)
                self.copies[worker.node_id] = {order.rank: [order.checkpoint] for order in ordered}
                self.desk.tray[worker.connection].clear()
        assert self.desk.machine.state.copying.copied_step == self.step

    def kill_scheduler(self) -> None:
        """Everybody comes back."""
        self.desk.restart()
        for worker in self.workers:
            assert isinstance(worker.register(), m.Admitted)

    def lose_host(self) -> None:
        """Its workers come back without their files, and everybody goes back to the newest step."""
        lost, others = self.workers[:A_HOST], self.workers[A_HOST:]
        for worker in lost:
            worker.die()
        self.desk.at(self.desk.now + 600)
        for worker in others:
            ready(worker, self.held[worker.node_id], copies=self.copies[worker.node_id])
        for worker in lost:
            assert isinstance(worker.register(), m.Admitted)
            worker.ready()
        assert {worker.last(m.Rollback).step for worker in self.workers} == {self.step}


@pytest.mark.parametrize("what", ["save", "kill_scheduler", "lose_host"])
def test_twice_as_many_workers_that_save_cost_twice_as_much(what: str) -> None:
    calls = []
    for count in (FEW // 2, MANY // 2):
        job = Saving(count)
        job.save()
        with counted() as found:
            getattr(job, what)()
        calls += found
    assert calls[1] / calls[0] < RATIO_MAX


@pytest.mark.parametrize("what", ["save", "lose_host"])
def test_what_was_saved_before_costs_nothing(what: str) -> None:
    calls = []
    for saves in (INDEXED_STEPS + 4, 4 * INDEXED_STEPS):
        job = Saving(2 * A_HOST)
        job.save(saves)
        with counted() as found:
            getattr(job, what)()
        calls += found
    assert calls[1] / calls[0] < SAME


def calls_of_a_lineage(failures: int) -> int:
    """Calls of functions until it is known whether a save of the newest of so many generations is of this history."""
    generations = [
        GenerationRecord(
            run=RunId(1), generation=Generation(one), step=one, epoch=0, step_in_epoch=0, because=""
        )
        for one in range(1, failures + 2)
    ]
    saved = checkpoint(failures + 10, generation=failures + 1)
    with counted() as calls:
        assert rollback.in_lineage((saved,), generations) == (saved,)
    return calls[0]


def test_a_save_costs_the_same_however_many_failures_there_were_before() -> None:
    """A year at one failure an hour: each save of each of 1,000 ranks took the scheduler 18 ms."""
    assert calls_of_a_lineage(8_760) == calls_of_a_lineage(1)


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
    taken, ids = dict[str, None](), SlotNames()
    for comes, name in moves:
        if comes:
            taken[name] = None
            ids.add(NodeId(name))
        elif name in taken:
            del taken[name]
            ids.remove(NodeId(name))
    assert sorted(ids) == sorted(taken)
    for asks in ("0", "00", "1", "3", "a", "d"):
        others = [other for other in taken if other != asks]
        kinds = any(other.isdecimal() != asks.isdecimal() for other in others)
        same = asks.isdecimal() and any(other.isdecimal() and int(other) == int(asks) for other in others)
        fault = ids.violation(NodeId(asks), 3)
        assert (fault is not None) == (kinds or same or (asks.isdecimal() and int(asks) >= 3))
