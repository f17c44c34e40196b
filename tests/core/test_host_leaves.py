"""A launcher's host is to be taken away: standbys elsewhere take its ranks behind a step that all have saved, or its nodes leave behind that step."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.barrier_messages import GoOn, HandedOver, JobSaved, NotHandedOver
from recovery.core.ids import ConnectionId, NodeId
from recovery.core.records import EventKind, JobState, NodeState
from recovery.core.scheduler.barrier import BarrierState
from recovery.core.scheduler.views import job_view
from tests.core.drained import RULES, Drained
from tests.core.test_job_stop import GRACE_MS, said, stop

ONE = (NodeId("worker_1"),)
NOTICE_MS = 20_000


class Left(Drained):
    """Two ranks; worker_1 is on the host that is to be taken away."""

    def leave(
        self, request: str = "one", *, connection: ConnectionId | None = None, nodes: tuple[NodeId, ...] = ONE
    ) -> ConnectionId:
        return stop(self.desk, request, connection=connection, within_ms=NOTICE_MS, nodes=nodes)

    def heard(self, launcher: ConnectionId) -> list[m.FromScheduler]:
        return self.desk.tray[launcher]

    def saved(self) -> int:
        """All ranks agree on a step, and save it."""
        for _ in range(2):
            for worker in self.workers:
                self.answer(worker, 14)
        step = self.asked(self.zero).step
        for worker in self.workers:
            worker.save(step)
        return step


def test_a_standby_takes_the_rank_within_the_time_of_the_notice() -> None:
    left = Left()
    launcher = left.leave()
    asked = [left.asked(worker) for worker in left.workers]
    assert [(at.wait_ms, at.leaves) for at in asked] == [(NOTICE_MS, False), (NOTICE_MS, True)]
    left.desk.at(RULES.drain_timeout_ms + 1)
    assert left.is_in(BarrierState.ASKING), "MS_DRAIN_TIMEOUT is for those who say no time"
    step = left.saved()
    assert left.one.hears(HandedOver) == 1
    assert left.heard(launcher) == []
    left.take_over(left.standbys[0], step)
    assert left.heard(launcher) == [said(step)]
    assert left.outcome() == f"handed over at step {step}, no step is lost"
    assert job_view(left.desk.machine.state, left.desk.now)["notices"] == 1


def test_without_a_standby_it_leaves_behind_a_step_that_all_have_saved() -> None:
    left = Left(standbys=0)
    launcher = left.leave()
    step = left.saved()
    assert left.one.hears(HandedOver) == 1
    assert not left.zero.hears(GoOn)
    assert left.node("worker_1").state is NodeState.LEFT
    left.desk.at(left.desk.now)
    assert left.heard(launcher) == [said(step, "worker_1 left, and no standby has taken the rank yet")]
    assert left.job is JobState.INTERRUPTED, "it waits for whoever comes for the rank"


@pytest.mark.parametrize("standbys", [0, 1])
def test_a_request_that_is_said_again_is_one(standbys: int) -> None:
    left = Left(standbys=standbys)
    launcher = left.leave()
    left.leave(connection=launcher)
    assert [one.kind for one in left.desk.events].count(EventKind.DRAIN_BEGUN) == 1
    step = left.saved()
    left.desk.at(2 * RULES.abort_timeout_ms)
    again = left.leave(connection=left.desk.connect())
    assert isinstance(left.heard(again)[-1], JobSaved)
    assert left.asked(left.zero).step == step, "nobody is asked again"


def test_it_joins_a_drain_under_way_and_gives_it_its_time() -> None:
    left = Left(standbys=2)
    left.depart(left.zero)
    launcher = left.leave()
    asked = [left.asked(worker) for worker in left.workers]
    assert [(at.wait_ms, at.leaves) for at in asked] == [(NOTICE_MS, True), (NOTICE_MS, True)]
    left.saved()
    assert [worker.hears(HandedOver) for worker in left.workers] == [1, 1]
    assert left.heard(launcher) == []


def test_a_second_request_has_no_more_time_than_the_ranks_that_wait_already() -> None:
    left = Left(standbys=2)
    first = left.leave()
    left.desk.at(NOTICE_MS // 2)
    second = left.leave("two", nodes=(NodeId("worker_0"),))
    left.desk.at(NOTICE_MS)
    assert all(isinstance(left.heard(launcher)[-1], JobSaved) for launcher in (first, second))
    assert left.outcome().startswith("it took longer than the 20 s that are left to its host, ")


def test_where_the_whole_job_ends_the_host_ends_with_it() -> None:
    left = Left()
    for worker in left.workers:
        worker.send(m.FirstStep(generation=worker.generation, step=1))
    ending = stop(left.desk, "all")
    assert all(left.asked(worker).leaves for worker in left.workers)
    assert left.asked(left.zero).wait_ms == GRACE_MS
    launcher = left.leave("host")
    step = left.saved()
    assert left.heard(ending) == [said(step, request="all")]
    assert left.heard(launcher) == [said(step, request="host")]


def test_it_hears_at_once_that_its_ranks_cannot_be_handed_over() -> None:
    left = Left()
    launcher = left.leave(nodes=(NodeId("worker_7"),))
    assert left.heard(launcher) == [said(10, "worker_7 has no rank")]


def test_a_notice_that_comes_when_no_rank_can_stop_is_told_once_for_launcher_and_process() -> None:
    left = Left()
    left.desk.lose(left.zero.connection)
    launcher = left.leave()
    [answer] = left.heard(launcher)
    assert isinstance(answer, JobSaved)
    left.leave("again", connection=left.desk.connect())
    left.depart(left.one)
    assert left.one.last(NotHandedOver).reason == answer.obstacle
    [told] = [one for one in left.desk.events if one.kind is EventKind.DRAIN_ENDED]
    assert told.reason.endswith(f"no rank could stop for it: {answer.obstacle}")
    assert told.details == "worker_1"
    assert job_view(left.desk.machine.state, left.desk.now)["notices"] == 1


def test_a_step_that_takes_longer_than_the_notice_is_given_up() -> None:
    left = Left()
    launcher = left.leave()
    left.desk.at(NOTICE_MS)
    [answer] = left.heard(launcher)
    assert isinstance(answer, JobSaved)
    assert answer.obstacle.startswith("it took longer than the 20 s that are left to its host, ")
    assert all(worker.hears(GoOn) for worker in left.workers)


@pytest.mark.parametrize("standbys", [0, 1])
def test_hosts_that_are_all_taken_away_at_once_leave_behind_one_step(standbys: int) -> None:
    """That of the scheduler hears of it second, and its launcher asks for the end of the job: the first one was answered that nothing is saved, and ended its ranks in the save."""
    left = Left(standbys=standbys)
    for worker in left.workers:
        worker.send(m.FirstStep(generation=worker.generation, step=1))
    leaves = left.leave("one")
    ends = stop(left.desk, "zero", within_ms=NOTICE_MS)
    assert left.heard(leaves) == [], "its ranks have something to save yet"
    step = left.saved()
    assert left.heard(leaves) == [said(step, request="one")]
    assert left.heard(ends) == [said(step, request="zero")]
    assert not left.one.hears(GoOn)


def test_who_leaves_and_within_what_time_is_shown_until_it_has_left() -> None:
    left = Left(standbys=0)

    def shown() -> object:
        return job_view(left.desk.machine.state, left.desk.now)["leaving"]

    assert shown() is None
    left.leave()
    left.desk.at(left.desk.now + 3_000)
    leaving = {"nodes": ["worker_1"], "whole_job": False, "left_ms": NOTICE_MS - 3_000, "step": 0}
    reason = "the launcher at 10.0.0.1: SIGTERM"
    assert shown() == {**leaving, "reason": reason}
    step = left.saved()
    assert left.outcome()
    assert shown() is None
    assert step
