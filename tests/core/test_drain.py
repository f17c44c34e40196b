"""A rank is handed over to a standby at a step that all ranks have saved, or everything goes on as without it."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.barrier_messages import GoOn, HandedOver, NotHandedOver, Position, SaveAt
from recovery.core.ids import NodeId
from recovery.core.records import EventKind, JobState, NodeState
from recovery.core.rules import Rules
from recovery.core.scheduler.barrier import BarrierState
from recovery.core.scheduler.barrier_ends import why_not
from recovery.core.scheduler.leave_requests import STOP_FOLLOWS_MS, named
from recovery.core.scheduler.stimuli import DrainAsked
from recovery.core.scheduler.views import drain_view
from tests.core.desk import Desk, Worker, checkpoint
from tests.core.drained import RULES, Drained


def test_a_rank_goes_to_a_standby_at_a_step_that_all_have_saved() -> None:
    drained = Drained()
    request = drained.depart()
    assert [drained.asked(worker).step for worker in drained.workers] == [0, 0], "where are you?"
    drained.answer(drained.zero, 14)
    assert drained.asked(drained.one).step == 0, "the other one has not answered"
    drained.answer(drained.one, 15)
    assert [drained.asked(worker).step for worker in drained.workers] == [16, 16], "the foremost and one"
    for worker in drained.workers:
        drained.answer(worker, 15)
    assert drained.is_in(BarrierState.SAVING)
    drained.zero.save(16)
    assert drained.job is JobState.RUNNING, "not all ranks hold it"
    assert not drained.one.hears(HandedOver)
    drained.one.save(16)
    assert drained.one.hears(HandedOver) == 1
    assert not drained.one.hears(NotHandedOver), f"the answer to {request} is that it was handed over"
    assert drained.node("worker_1").state is NodeState.LEFT
    assert drained.zero.hears(m.Interrupt)
    assert not drained.one.hears(m.Interrupt), "a script would replace itself instead of going"
    drained.take_over(drained.standbys[0], 16)
    assert drained.zero.last(m.Rollback).step == drained.standbys[0].last(m.Rollback).step == 16
    assert drained.node("standby_0").rank == 1
    assert drained.outcome() == "handed over at step 16, no step is lost"
    assert drained.is_in(BarrierState.ENDED)
    [begun] = [one for one in drained.desk.events if one.kind is EventKind.DRAIN_BEGUN]
    assert (begun.reason, begun.details) == ("worker_1: SIGTERM", "worker_1")


def test_a_step_that_one_has_passed_is_named_again_twice_as_far_ahead() -> None:
    drained = Drained()
    drained.depart()
    named_steps = []
    for passed in (20, 21, 23, 27):
        drained.answer(drained.zero, passed)
        drained.answer(drained.one, 19)
        named_steps.append(drained.asked(drained.one).step)
    assert named_steps == [21, 23, 27, 35]
    assert drained.is_in(BarrierState.AGREEING)
    for worker in drained.workers:
        drained.answer(worker, 30)
    assert drained.is_in(BarrierState.SAVING)


def test_an_answer_about_another_step_or_drain_says_nothing() -> None:
    drained = Drained()
    drained.zero.send(Position(drain=1, step=0, passed=3, stops=False))
    drained.depart()
    drained.answer(drained.zero, 14)
    drained.one.send(Position(drain=1, step=7, passed=9, stops=False))
    drained.one.send(Position(drain=2, step=0, passed=9, stops=False))
    assert drained.is_in(BarrierState.ASKING)
    drained.answer(drained.one, 14)
    for worker in drained.workers:
        drained.answer(worker, 14)
    drained.answer(drained.one, 14)
    assert drained.is_in(BarrierState.SAVING), "said twice"


# --- when it is not begun -------------------------------------------------------------------------------------------------


def test_without_a_standby_the_answer_is_no_and_the_step_is_saved() -> None:
    drained = Drained(standbys=0)
    request = drained.depart()
    for _ in range(2):
        for worker in drained.workers:
            drained.answer(worker, 14)
    for worker in drained.workers:
        worker.save(15)
    assert drained.is_in(BarrierState.SAVING), "nobody is sent away"
    drained.desk.at(STOP_FOLLOWS_MS)
    assert drained.one.last(NotHandedOver) == NotHandedOver(request_id=request, reason="no standby is ready")
    assert drained.zero.hears(GoOn)
    drained.one.send(m.Leave(request_id=drained.one.request(), reason="SIGTERM"))
    assert drained.node("worker_1").state is NodeState.LEFT
    assert drained.desk.machine.state.checkpoints.committed_step == 15


def test_why_a_drain_is_not_begun() -> None:
    drained = Drained(standbys=1)
    state = drained.desk.machine.state
    one = (NodeId("worker_1"),)
    assert why_not(state, one, "") == ""
    assert why_not(state, (NodeId("standby_0"),), "") == "standby_0 has no rank"
    assert why_not(state, (NodeId("x"),), "") == "x has no rank"
    both = (NodeId("worker_0"), NodeId("worker_1"))
    assert why_not(state, both, "") == "2 ranks need a standby each, and there are 1"
    assert why_not(state, one, state.nodes[NodeId("standby_0")].record.host) == "no standby is ready"
    drained.zero.done()
    assert why_not(state, one, "") == "worker_0 has trained to the end"
    drained.zero.die()
    assert why_not(state, one, "") == "worker_0 is suspect (connection closed)"
    drained.desk.at(RULES.reconnect_grace_ms)
    assert why_not(state, one, "").startswith("the job is interrupted (worker_0 lost")
    forming = Desk(RULES)
    assert why_not(forming.machine.state, one, "") == "the job is forming"
    off = Desk(Rules(worker_count=2, recovery_enabled=False))
    assert why_not(off.machine.state, one, "") == "MS_ENABLE_RECOVERY=1 is not set"


def test_who_asks_when_the_generation_is_over_is_answered() -> None:
    drained = Drained()
    drained.zero.die()
    drained.desk.at(RULES.reconnect_grace_ms)
    drained.depart()
    assert drained.one.last(NotHandedOver).reason.startswith("the job is interrupted")


# --- when it is given up --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [BarrierState.ASKING, BarrierState.AGREEING, BarrierState.SAVING])
@pytest.mark.parametrize(
    "what", ["survivor", "standby", "departing", "stopped", "done", "leaves", "time", "cannot save"]
)
def test_whatever_comes_between_gives_it_up_and_lets_everybody_go_on(state: BarrierState, what: str) -> None:
    drained = Drained()
    request = drained.depart()
    for _ in range({BarrierState.ASKING: 0, BarrierState.AGREEING: 1, BarrierState.SAVING: 2}[state]):
        for worker in drained.workers:
            drained.answer(worker, 14)
    assert drained.is_in(state)
    match what:
        case "survivor":
            drained.zero.die()
        case "standby":
            drained.standbys[0].die()
            drained.desk.at(STOP_FOLLOWS_MS)
            assert drained.is_in(state), "the process leaves anyway, behind a save if there is time for one"
            drained.desk.at(RULES.drain_timeout_ms)
        case "departing":
            drained.one.die()
        case "stopped":
            drained.zero.ready(step=14)
        case "done":
            drained.zero.done()
        case "leaves":
            drained.one.send(m.Leave(request_id=drained.one.request(), reason="SIGTERM"))
        case "time":
            drained.desk.at(RULES.drain_timeout_ms)
        case _:
            drained.answer(drained.zero, 14, obstacle="nothing saves")
    assert drained.is_in(BarrierState.ENDED)
    for worker in drained.workers:
        if drained.desk.machine.state.speaker(worker.connection) is not None:
            assert worker.last(GoOn) == GoOn(drain=1)
    if what != "departing":
        assert drained.one.last(NotHandedOver).request_id == request
        assert not drained.one.hears(HandedOver)
    assert drained.outcome()
    before = len(drained.desk.events)
    drained.answer(drained.zero, 14)
    drained.desk.at(RULES.drain_timeout_ms)
    assert EventKind.DRAIN_ENDED not in drained.desk.kinds()[before:], "it ends once"


def test_a_reason_says_what_came_between() -> None:
    drained = Drained()
    drained.saving()
    drained.answer(drained.zero, 15, obstacle="nothing that can save out of turn is known here")
    assert drained.outcome() == (
        "worker_0 cannot save at a step that is asked for: nothing that can save out of turn is known here"
    )
    drained = Drained()
    drained.saving()
    drained.desk.at(5_000)
    assert drained.outcome() == "it took longer than 5 s (MS_DRAIN_TIMEOUT), saving"


def test_a_drain_that_was_given_up_can_be_asked_for_again() -> None:
    drained = Drained(standbys=2)
    drained.saving()
    drained.standbys[0].die()
    assert drained.is_in(BarrierState.SAVING), "one is enough"
    drained.desk.at(5_000)
    assert drained.is_in(BarrierState.ENDED)
    drained.depart()
    assert (drained.state, drained.asked(drained.zero).drain) == (BarrierState.ASKING, 2)
    drained.desk.at(9_999)
    assert drained.is_in(BarrierState.ASKING), "its own time counts"
    drained.desk.at(10_000)
    assert drained.is_in(BarrierState.ENDED)


def test_a_scheduler_that_starts_again_knows_nothing_of_a_drain() -> None:
    drained = Drained()
    drained.saving()
    drained.desk.restart()
    assert drained.desk.machine.state.barrier is None


# --- several ------------------------------------------------------------------------------------------------------------


def test_two_that_depart_together_are_handed_over_at_one_step() -> None:
    drained = Drained(standbys=2)
    drained.depart(drained.one)
    drained.depart(drained.zero)
    for _ in range(2):
        for worker in drained.workers:
            drained.answer(worker, 14)
    for worker in drained.workers:
        worker.save(15)
    assert [worker.hears(HandedOver) for worker in drained.workers] == [1, 1]
    for standby in drained.standbys:
        offer = standby.last(m.Offer)
        standby.send(
            m.Ready(
                request_id=standby.request(),
                generation=standby.generation,
                step=0,
                held=offer.held,
                rank=offer.rank,
            )
        )
    assert [standby.last(m.Rollback).step for standby in drained.standbys] == [15, 15]
    assert drained.outcome() == "handed over at step 15, no step is lost"
    assert [one.details for one in drained.desk.events if one.kind is EventKind.DRAIN_ENDED] == [
        "worker_0, worker_1"
    ]


def test_when_more_depart_than_standbys_wait_all_leave_as_they_are() -> None:
    drained = Drained(standbys=1)
    drained.depart(drained.one)
    drained.desk.at(STOP_FOLLOWS_MS)
    assert drained.is_in(BarrierState.ASKING)
    drained.depart(drained.zero)
    assert drained.is_in(BarrierState.ASKING), "the launcher may be asked to end the job by the same signal"
    for _ in range(2):
        for worker in drained.workers:
            drained.answer(worker, 14)
    for worker in drained.workers:
        worker.save(15)
    drained.desk.at(2 * STOP_FOLLOWS_MS)
    for worker in drained.workers:
        assert worker.last(NotHandedOver).reason == "2 ranks need a standby each, and there are 1"
    assert drained.outcome() == "2 ranks need a standby each, and there are 1"


# --- asked for by a person --------------------------------------------------------------------------------------------------


def test_a_person_names_a_node_or_a_host() -> None:
    drained = Drained(standbys=2, standby_host="10.0.0.9")
    state = drained.desk.machine.state
    host = state.nodes[NodeId("worker_0")].record.host
    assert named(state, "worker_1") == (("worker_1",), "")
    assert named(state, host) == (("worker_0", "worker_1"), host)
    assert named(state, "10.0.0.9")[0] == (), "only a standby runs there"
    assert drain_view(state)["number"] == 0
    drained.desk.handle(DrainAsked((NodeId("worker_0"), NodeId("worker_1")), host, f"recovery drain {host}"))
    assert drain_view(state) == {
        "number": 1,
        "state": "asking",
        "nodes": ["worker_0", "worker_1"],
        "step": 0,
        "handed_over": False,
        "reason": "",
    }


def test_who_is_drained_by_a_person_trains_on_when_it_is_given_up() -> None:
    drained = Drained()
    drained.desk.handle(DrainAsked((NodeId("worker_1"),), "", "recovery drain worker_1"))
    drained.standbys[0].die()
    assert drained.is_in(BarrierState.ENDED)
    assert drained.one.hears(GoOn)
    assert not drained.one.hears(NotHandedOver), "it has asked nothing"
    assert drained.job is JobState.RUNNING


def test_a_signal_joins_what_a_person_has_begun() -> None:
    drained = Drained()
    drained.desk.handle(DrainAsked((NodeId("worker_1"),), "", "recovery drain worker_1"))
    request = drained.depart()
    drained.desk.handle(DrainAsked((NodeId("worker_1"),), "", "recovery drain worker_1"))
    drained.standbys[0].die()
    drained.desk.at(RULES.drain_timeout_ms)
    assert drained.one.last(NotHandedOver).request_id == request


def test_what_cannot_be_begun_any_more_when_it_is_delivered_is_not() -> None:
    drained = Drained(standbys=0)
    drained.desk.handle(DrainAsked((NodeId("worker_1"),), "", "recovery drain worker_1"))
    assert drained.desk.machine.state.barrier is None


def test_no_standby_of_a_host_that_is_drained_takes_a_rank_of_it() -> None:
    drained = Drained(standbys=1, standby_host="10.0.0.9")
    here = Worker(drained.desk, "standby_9", standby=True)
    assert isinstance(here.register(), m.Admitted)
    state = drained.desk.machine.state
    host = state.nodes[NodeId("worker_1")].record.host
    assert state.nodes[NodeId("standby_9")].record.host == host
    drained.desk.handle(DrainAsked((NodeId("worker_1"),), host, f"recovery drain {host}"))
    for _ in range(2):
        for worker in drained.workers:
            drained.answer(worker, 14)
    for worker in drained.workers:
        worker.save(15)
    assert not here.hears(m.Offer), "the one of the same host would be asked first otherwise"
    assert drained.standbys[0].hears(m.Offer)


# --- after it has left ------------------------------------------------------------------------------------------------------


def test_a_hand_over_that_no_standby_ends_is_said() -> None:
    drained = Drained()
    drained.handing_over()
    assert drained.is_in(BarrierState.HANDING_OVER)
    drained.standbys[0].die()
    drained.desk.at(2 * RULES.abort_timeout_ms)
    assert drained.outcome() == "worker_1 left, and no standby has taken the rank yet"


def test_a_hand_over_to_another_step_is_none() -> None:
    drained = Drained()
    step = drained.handing_over()
    offer = drained.standbys[0].last(m.Offer)
    drained.standbys[0].send(
        m.Ready(
            request_id=drained.standbys[0].request(),
            generation=drained.standbys[0].generation,
            step=0,
            held=offer.held,
            rank=offer.rank,
        )
    )
    drained.zero.ready(checkpoint(10, path="worker_0/10"))
    assert drained.outcome() == f"worker_1 left at step {step}, but the plan goes to step 10"
    assert not drain_view(drained.desk.machine.state)["handed_over"]


def test_the_end_of_the_job_ends_the_hand_over() -> None:
    drained = Drained()
    drained.handing_over()
    drained.desk.at(RULES.topology_timeout_ms or 0)
    assert drained.outcome().startswith("worker_1 left, and no standby"), "long before"
    drained = Drained(rules=Rules(worker_count=2, standby_count=2, topology_timeout_ms=1_000))
    drained.handing_over()
    drained.desk.at(1_000)
    assert drained.outcome().startswith("the job has ended: ")


def test_answer_to_the_question_where_a_rank_is_names_no_step_to_stop_at() -> None:
    drained = Drained()
    drained.depart()
    for worker in drained.workers:
        worker.send(Position(drain=drained.asked(worker).drain, step=0, passed=14, stops=True))
    assert drained.is_in(BarrierState.AGREEING)
    assert drained.asked(drained.zero).step == 15


def test_where_a_standby_is_counts_for_no_rank() -> None:
    drained = Drained()
    drained.depart()
    drained.answer(drained.zero, 14)
    [waits] = drained.standbys
    waits.send(Position(drain=1, step=0, passed=90, stops=False))
    assert drained.is_in(BarrierState.ASKING), "worker_1 has not answered"
    drained.answer(drained.one, 14)
    assert drained.asked(drained.zero).step == 15


def test_who_joins_a_drain_hears_that_its_wish_has_come() -> None:
    drained = Drained(standbys=2)
    step = drained.saving()
    before = drained.zero.hears(SaveAt)
    drained.depart(drained.zero)
    assert drained.zero.hears(SaveAt) == before + 1
    assert drained.asked(drained.zero).step == step
    assert drained.is_in(BarrierState.SAVING)
    drained.answer(drained.zero, 14)
    for worker in drained.workers:
        worker.save(step)
    assert [worker.hears(HandedOver) for worker in drained.workers] == [1, 1]
