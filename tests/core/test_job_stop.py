"""A launcher is asked to end the job: every rank saves a step and waits there for its end, or the job ends as it is."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.barrier_messages import (
    GoOn,
    HandedOver,
    JobSaved,
    NotHandedOver,
    Position,
    SaveAt,
    StopJob,
)
from recovery.core.checkpoints import CheckpointIndex
from recovery.core.ids import ConnectionId, NodeId, RequestId
from recovery.core.records import EventKind, JobState
from recovery.core.rules import Rules
from recovery.core.scheduler.barrier import BarrierState
from recovery.core.scheduler.barrier_ends import why_not
from recovery.core.scheduler.leave_requests import STOP_FOLLOWS_MS
from recovery.core.scheduler.stimuli import DrainAsked
from recovery.core.scheduler.views import drain_view
from tests.core.desk import Desk, Worker, checkpoint
from tests.core.drained import RULES, Drained

GRACE_MS = 25_000


class Stopped(Drained):
    """Two ranks that have done a step behind their checkpoint, and launchers that are asked to end the job."""

    def __init__(self, *, standbys: int = 0, rules: Rules = RULES) -> None:
        super().__init__(standbys=standbys, rules=rules)
        for worker in self.workers:
            worker.send(m.FirstStep(generation=worker.generation, step=1))

    def stop(self, request: str = "one", *, connection: ConnectionId | None = None) -> ConnectionId:
        """A launcher asks, on a connection of its own unless it asks again."""
        return stop(self.desk, request, connection=connection)

    def heard(self, launcher: ConnectionId) -> list[m.FromScheduler]:
        return self.desk.tray[launcher]

    def until(self, state: BarrierState) -> int:
        """Let all ranks answer until the stop is so far; gives the step."""
        rounds = {BarrierState.ASKING: 0, BarrierState.AGREEING: 1, BarrierState.SAVING: 2}
        for _ in range(rounds[state]):
            for worker in self.workers:
                self.answer(worker, 14)
        assert self.is_in(state)
        return self.asked(self.zero).step


def stop(
    desk: Desk,
    request: str = "one",
    *,
    connection: ConnectionId | None = None,
    within_ms: int = GRACE_MS,
    nodes: tuple[NodeId, ...] = (),
) -> ConnectionId:
    connection = connection or desk.connect()
    asked = StopJob(request_id=RequestId(request), reason="SIGTERM", within_ms=within_ms, nodes=nodes)
    desk.say(connection, asked)
    return connection


def said(step: int, obstacle: str = "", request: str = "one") -> JobSaved:
    return JobSaved(request_id=RequestId(request), step=step, obstacle=obstacle)


def test_all_ranks_save_a_step_and_wait_there_for_their_end() -> None:
    stopped = Stopped()
    launcher = stopped.stop()
    assert [stopped.asked(worker).step for worker in stopped.workers] == [0, 0], "where are you?"
    step = stopped.until(BarrierState.SAVING)
    assert (step, stopped.asked(stopped.zero).wait_ms) == (15, GRACE_MS)
    stopped.zero.save(15)
    assert stopped.heard(launcher) == [], "not all ranks hold it"
    stopped.one.save(15)
    assert stopped.heard(launcher) == [said(15)]
    assert stopped.outcome() == "saved at step 15, where the job ends"
    [begun] = [one for one in stopped.desk.events if one.kind is EventKind.DRAIN_BEGUN]
    assert (begun.reason, begun.details) == ("the launcher at 10.0.0.1: SIGTERM", "")
    assert stopped.job is JobState.RUNNING
    for worker in stopped.workers:
        assert not worker.hears(GoOn), "it waits"
        assert not worker.hears(HandedOver), "its launcher ends it"
    assert launcher in stopped.desk.kept
    assert launcher not in stopped.desk.closed


def test_the_next_start_goes_on_at_the_saved_step() -> None:
    stopped = Stopped()
    stopped.stop()
    step = stopped.until(BarrierState.SAVING)
    for worker in stopped.workers:
        worker.save(step)
    for worker in stopped.workers:
        stopped.depart(worker)
        assert worker.last(NotHandedOver).reason == "the job ends"
    for worker in stopped.workers:
        worker.send(m.Leave(request_id=worker.request(), reason="SIGTERM"))
    stopped.desk.restart()
    for worker in stopped.workers:
        assert isinstance(worker.register(keep_token=False), m.Admitted)
        worker.ready(checkpoint(step, path=f"{worker.node_id}/{step}"))
    assert [worker.last(m.Rollback).step for worker in stopped.workers] == [step, step]


@pytest.mark.parametrize("has_saved", [False, True])
@pytest.mark.parametrize("standbys", [0, 1])
def test_a_signal_to_all_processes_at_once_is_the_end_of_the_job(standbys: int, has_saved: bool) -> None:
    """The workers' requests come first, and a standby leaves; the launcher's has all stop once more, with its own time."""
    stopped = Stopped(standbys=standbys)
    for standby in stopped.standbys:
        standby.send(m.Leave(request_id=standby.request(), reason="SIGTERM"))
    requests = [stopped.depart(worker) for worker in stopped.workers]
    assert stopped.asked(stopped.zero).wait_ms == RULES.drain_timeout_ms
    if has_saved:
        step = stopped.until(BarrierState.SAVING)
        for worker in stopped.workers:
            worker.save(step)
    for worker in stopped.workers:
        assert not worker.hears(NotHandedOver)
    launcher = stopped.stop()
    assert [stopped.asked(worker).wait_ms for worker in stopped.workers] == [GRACE_MS, GRACE_MS]
    stopped.desk.at(STOP_FOLLOWS_MS)
    for _ in range(2):
        for worker in stopped.workers:
            stopped.answer(worker, 17)
    for worker in stopped.workers:
        worker.save(18)
    assert stopped.heard(launcher) == [said(18)]
    for worker, request in zip(stopped.workers, requests, strict=True):
        assert worker.last(NotHandedOver).request_id == request
        assert not worker.hears(GoOn), "it leaves at that step"
    ended = [one.reason for one in stopped.desk.events if one.kind is EventKind.DRAIN_ENDED]
    assert ended == ["the whole job is to end", "saved at step 18, where the job ends"]


def test_a_job_that_cannot_be_saved_lets_those_go_that_had_asked_before() -> None:
    stopped = Stopped()
    request = stopped.depart(stopped.one)
    stopped.zero.die()
    assert stopped.one.last(NotHandedOver).request_id == request
    launcher = stopped.stop()
    assert "worker_0 is suspect" in stopped.heard(launcher)[0].obstacle  # type: ignore[union-attr]  # JobSaved has one


def test_a_job_that_is_not_worth_a_save_lets_those_go_that_wait_for_another() -> None:
    """A signal to all processes before the first step: the workers' requests have the ranks wait already."""
    drained = Drained(standbys=0)
    request = drained.depart()
    launcher = stop(drained.desk)
    [answer] = drained.desk.tray[launcher]
    assert answer == said(10, "no step is done since step 0")
    assert drained.zero.last(GoOn) == GoOn(drain=1)
    assert drained.one.last(NotHandedOver).request_id == request


def test_who_is_ended_behind_a_save_that_came_to_nothing_leaves_at_once() -> None:
    stopped = Stopped()
    stopped.stop()
    stopped.desk.at(GRACE_MS)
    assert stopped.is_in(BarrierState.ENDED)
    stopped.depart(stopped.one)
    assert stopped.one.last(NotHandedOver).reason == "no standby is ready"
    assert stopped.desk.kinds().count(EventKind.DRAIN_BEGUN) == 1


def test_the_requests_of_all_launchers_are_one() -> None:
    stopped = Stopped()
    first = stopped.stop("one")
    second = stopped.stop("two")
    stopped.stop("one", connection=first)
    step = stopped.until(BarrierState.SAVING)
    for worker in stopped.workers:
        worker.save(step)
    assert stopped.heard(first) == [said(step)]
    assert stopped.heard(second) == [said(step, request="two")]
    late = stopped.stop("three")
    assert stopped.heard(late) == [said(step, request="three")], "all wait there"
    stopped.zero.send(m.Leave(request_id=stopped.zero.request(), reason="SIGTERM"))
    assert stopped.job is JobState.INTERRUPTED
    later = stopped.stop("four")
    assert stopped.heard(later) == [said(step, request="four")], "nobody has trained since"
    assert stopped.desk.kinds().count(EventKind.DRAIN_BEGUN) == 1


def test_ranks_that_have_waited_long_enough_train_on_and_can_be_stopped_again() -> None:
    stopped = Stopped()
    stopped.stop()
    step = stopped.until(BarrierState.SAVING)
    for worker in stopped.workers:
        worker.save(step)
    stopped.desk.at(GRACE_MS)
    again = stopped.stop("two")
    assert stopped.is_in(BarrierState.ASKING)
    assert stopped.heard(again) == []


def test_a_request_that_was_answered_has_the_same_answer_again() -> None:
    stopped = Stopped()
    launcher = stopped.stop()
    stopped.zero.die()
    stopped.stop(connection=launcher)
    obstacle = "worker_0 is suspect (connection closed)"
    assert stopped.heard(launcher) == [said(10, obstacle), said(10, obstacle)]
    assert stopped.desk.kinds().count(EventKind.DRAIN_ENDED) == 1


# --- not saved ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [BarrierState.ASKING, BarrierState.AGREEING, BarrierState.SAVING])
@pytest.mark.parametrize(
    ("what", "obstacle"),
    [
        ("dies", "worker_0 is suspect (connection closed)"),
        ("time", "it took longer than MS_STOP_GRACE leaves for it, "),
        ("cannot save", "worker_0 cannot save at a step that is asked for: nothing saves"),
    ],
)
def test_whatever_comes_between_ends_the_job_as_it_is(state: BarrierState, what: str, obstacle: str) -> None:
    stopped = Stopped()
    launcher = stopped.stop()
    stopped.until(state)
    match what:
        case "dies":
            stopped.zero.die()
        case "time":
            for worker in stopped.workers:
                worker.beat()
            stopped.desk.at(GRACE_MS - 1)
            assert stopped.is_in(state)
            stopped.desk.at(GRACE_MS)
            obstacle += state.value
        case _:
            stopped.answer(stopped.zero, 14, obstacle="nothing saves")
    assert stopped.heard(launcher) == [said(10, obstacle)]
    assert stopped.outcome() == f"not saved for the end of the job: {obstacle}"
    assert stopped.one.last(GoOn) == GoOn(drain=1)


def test_a_job_that_cannot_be_saved_is_not_kept_waiting() -> None:
    forming = Desk(RULES)
    launcher = stop(forming)
    assert forming.tray[launcher] == [said(0, "the job is forming")]
    stopped = Stopped(rules=Rules(worker_count=2, recovery_enabled=False))
    launcher = stopped.stop()
    assert stopped.heard(launcher) == [said(10, "MS_ENABLE_RECOVERY=1 is not set")]
    stopped = Stopped()
    for worker in stopped.workers:
        worker.done()
    launcher = stopped.stop()
    [answer] = stopped.heard(launcher)
    assert isinstance(answer, JobSaved)
    assert answer.obstacle.startswith("the job is finished")
    assert stopped.outcome().startswith("not saved for the end of the job: the job is finished")


def test_a_job_that_has_done_no_step_has_nothing_to_lose() -> None:
    desk = Desk(RULES)
    drained = Drained(standbys=0, desk=desk)
    launcher = stop(desk)
    assert desk.tray[launcher] == [said(10, "no step is done since step 0")]
    assert not drained.zero.hears(SaveAt)


# --- beside a planned departure ----------------------------------------------------------------------------------------------


def test_a_departure_that_is_under_way_becomes_the_end_of_the_job() -> None:
    stopped = Stopped(standbys=1)
    request = stopped.depart()
    launcher = stopped.stop()
    step = stopped.until(BarrierState.SAVING)
    stopped.standbys[0].die()
    assert stopped.is_in(BarrierState.SAVING), "nobody is to take the rank"
    for worker in stopped.workers:
        worker.save(step)
    assert stopped.heard(launcher) == [said(step)]
    assert stopped.one.last(NotHandedOver) == NotHandedOver(
        request_id=request, reason=f"saved at step {step}, where the job ends", job_ends=True
    )
    assert not drain_view(stopped.desk.machine.state)["handed_over"]


def test_a_worker_that_is_asked_to_end_while_the_job_is_saved_waits_for_that() -> None:
    stopped = Stopped()
    stopped.stop()
    stopped.depart()
    assert not stopped.one.hears(NotHandedOver), "there is no standby, and it needs none"
    step = stopped.until(BarrierState.SAVING)
    for worker in stopped.workers:
        worker.save(step)
    assert stopped.one.hears(NotHandedOver) == 1
    state = stopped.desk.machine.state
    assert why_not(state, (NodeId("worker_1"),), "") == "the job ends"
    stopped.desk.handle(DrainAsked((NodeId("worker_1"),), "", "recovery drain worker_1"))
    assert stopped.desk.kinds().count(EventKind.DRAIN_BEGUN) == 1


def test_a_rank_that_is_being_handed_over_is_at_a_step_that_all_hold() -> None:
    drained = Drained()
    step = drained.handing_over()
    launcher = stop(drained.desk)
    obstacle = f"a rank is being handed over at step {step}"
    assert drained.desk.tray[launcher] == [said(step, obstacle)]
    drained.take_over(drained.standbys[0], step)
    assert drained.outcome() == f"handed over at step {step}, no step is lost"


def over(stopped: Stopped, worker: Worker, last: int) -> None:
    """The rank's loop has come to its end, behind this step."""
    at = stopped.asked(worker)
    worker.send(Position(drain=at.drain, step=at.step, passed=last, stops=at.step > last, is_over=True))


@pytest.mark.parametrize("state", [BarrierState.ASKING, BarrierState.AGREEING, BarrierState.SAVING])
@pytest.mark.parametrize("saved", [False, True])
def test_a_job_of_which_a_rank_has_trained_to_the_end_waits_for_that_step_alone(
    state: BarrierState, saved: bool
) -> None:
    """That rank is in the evaluation behind its loop, and the other one comes there too, or waits before."""
    stopped = Stopped()
    launcher = stopped.stop()
    stopped.until(state)
    if saved:
        for worker in stopped.workers:
            worker.save(14)
    over(stopped, stopped.one, 14)
    assert [stopped.asked(worker).step for worker in stopped.workers] == [14, 14]
    if not saved:
        over(stopped, stopped.one, 14)
        stopped.answer(stopped.zero, 13)
        stopped.one.save(14)
        assert stopped.heard(launcher) == []
        stopped.zero.save(14)
    assert stopped.heard(launcher) == [said(14)]


@pytest.mark.parametrize("before", [False, True])
def test_a_job_of_which_a_rank_is_done_is_saved_where_the_other_one_comes_to_that_step(before: bool) -> None:
    """It has left the evaluation behind its loop too."""
    stopped = Stopped()
    if before:
        stopped.one.save(20)
        stopped.one.done(20)
    launcher = stopped.stop()
    if not before:
        stopped.one.save(20)
        stopped.one.done(20)
    over(stopped, stopped.one, 20)
    stopped.answer(stopped.zero, 14)
    assert (stopped.asked(stopped.zero).step, stopped.heard(launcher)) == (20, [])
    stopped.zero.save(20)
    assert stopped.heard(launcher) == [said(20)]


@pytest.mark.parametrize("saves", [False, True])
def test_a_rank_that_has_trained_to_the_end_is_not_handed_over_nor_waited_for_where_nothing_saves(
    saves: bool,
) -> None:
    stopped = Stopped(standbys=1)
    if saves:
        request = stopped.depart()
        over(stopped, stopped.one, 20)
        assert stopped.one.last(NotHandedOver) == NotHandedOver(
            request_id=request, reason="worker_1 has trained to the end"
        )
        return
    stopped.desk.machine.state.checkpoints = CheckpointIndex(2)
    launcher = stopped.stop()
    over(stopped, stopped.one, 20)
    assert stopped.heard(launcher) == [said(0, "worker_1 has trained to the end")]
    assert stopped.zero.hears(GoOn)
