"""Who is offered a lost rank, what an answer means, how the slot changes hands."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.records import EventKind, JobState, NodeRecord, NodeState
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, checkpoint
from tests.core.standbys import GRACE_MS, RULES, answer, job, lose, reasons, row, slot, standby, training

# --- the way that it goes --------------------------------------------------------------------------------------------


def test_standby_is_offered_the_lost_rank_and_takes_it_within_its_window() -> None:
    desk = Desk(RULES)
    first, second = training(desk, 10, 20)
    waits = standby(desk)
    lose(desk, second)

    offer = waits.last(m.Offer)
    assert (offer.rank, offer.replaced, offer.committed_step) == (1, "worker_1", 20)
    assert [one.path for one in offer.held] == ["worker_1/20", "worker_1/10"]
    answer(waits, 20, 10)
    assert (row(desk, "worker_1").rank, row(desk, "s0").rank) == (None, 1)
    assert (slot(desk, "worker_1"), slot(desk, "s0")) == ("", "worker_1")
    [taken] = [event for event in desk.events if event.kind is EventKind.RANK_TAKEN_OVER]
    assert (taken.node_id, taken.rank, taken.details, taken.reason) == (
        "s0",
        1,
        "worker_1",
        "connection closed",
    )

    first.ready(checkpoint(20, path="worker_0/20"), step=25)
    plan = waits.follow()
    assert (plan.rank, plan.step, plan.path, plan.generation) == (1, 20, "worker_1/20", 2)
    assert first.follow().rank == 0
    assert desk.now < 2_000, "within the window of the lost id"
    assert job(desk).state is JobState.RUNNING


def test_nothing_counts_a_standby_and_its_loss_ends_no_generation() -> None:
    desk = Desk(RULES)
    first, second = training(desk)
    waits = standby(desk)
    assert job(desk).state is JobState.RUNNING
    lose(desk, waits)
    assert row(desk, "s0").state is NodeState.LOST
    assert job(desk).state is JobState.RUNNING
    another = standby(desk, "s1")
    another.send(m.Leave(request_id=another.request(), reason="SIGTERM"))
    third = standby(desk, "s2")
    third.raises()
    third.die()
    assert job(desk).state is JobState.RUNNING
    last = standby(desk, "s3")
    first.done()
    second.done()
    assert job(desk).state is JobState.FINISHED
    assert last.hears(m.JobEnded) == 1


def test_waiting_for_the_ranks_does_not_count_standbys() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=2))
    standby(desk, "s0")
    standby(desk, "s1")
    first = Worker(desk, "worker_0")
    first.register()
    first.ready()
    assert job(desk).state is JobState.FORMING
    second = Worker(desk, "worker_1")
    second.register()
    second.ready()
    assert job(desk).state is JobState.RUNNING
    assert {one.node_id: one.rank for one in desk.row(NodeRecord)} == {
        "worker_0": 0,
        "worker_1": 1,
        "s0": None,
        "s1": None,
    }


def test_rank_that_a_standby_has_taken_is_lost_like_any_and_taken_again() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=2))
    first, second = training(desk, 10)
    one, two = standby(desk, "s0"), standby(desk, "s1")
    lose(desk, second)
    answer(one, 10)
    lose(desk, one)
    offer = two.last(m.Offer)
    assert (offer.rank, offer.replaced) == (1, "s0")
    answer(two, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    assert two.follow().rank == 1
    assert (slot(desk, "s0"), slot(desk, "s1")) == ("", "worker_1")


# --- who is asked ----------------------------------------------------------------------------------------------------


def test_standby_on_the_host_of_the_lost_one_is_asked_first() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=2))
    _, second = training(desk, 10)
    far, near = standby(desk, "s0", host="10.0.0.9"), standby(desk, "s1")
    lose(desk, second)
    assert (far.hears(m.Offer), near.hears(m.Offer)) == (0, 1)


def test_two_lost_ranks_are_offered_to_two_standbys() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=2))
    first, second = training(desk, 10)
    one, two = standby(desk, "s0"), standby(desk, "s1")
    first.die()
    second.die()
    desk.at(desk.now + GRACE_MS)
    assert (one.last(m.Offer).rank, two.last(m.Offer).rank) == (0, 1)
    answer(two, 10)
    answer(one, 10, of="worker_0", rank=0)
    assert (one.follow().rank, two.follow().rank) == (0, 1)


def test_standby_that_finds_two_ranks_lost_is_asked_for_one() -> None:
    desk = Desk(RULES)
    first, second = training(desk, 10)
    first.die()
    second.die()
    desk.at(desk.now + GRACE_MS)
    late = standby(desk)
    assert [one.rank for one in desk.tray[late.connection] if isinstance(one, m.Offer)] == [0]


def test_who_may_still_come_back_keeps_its_rank() -> None:
    desk = Desk(RULES)
    _, second = training(desk, 10)
    waits = standby(desk)
    second.die()
    desk.at(desk.now + 400)
    assert waits.hears(m.Offer) == 0
    second.register()
    desk.at(desk.now + 10_000)
    assert waits.hears(m.Offer) == 0
    assert job(desk).state is JobState.RUNNING


def test_rank_of_who_leaves_is_offered_too() -> None:
    desk = Desk(RULES)
    _, second = training(desk, 10)
    waits = standby(desk)
    second.send(m.Leave(request_id=second.request(), reason="SIGTERM"))
    assert waits.last(m.Offer).replaced == "worker_1"


def test_standby_that_comes_after_the_loss_is_asked_behind_its_admission() -> None:
    desk = Desk(RULES)
    _, second = training(desk, 10)
    lose(desk, second)
    late = Worker(desk, "s0", standby=True)
    assert isinstance(late.register(), m.Admitted)
    kinds = [type(one) for one in desk.tray[late.connection]]
    assert kinds.index(m.Admitted) < kinds.index(m.Offer)


# --- answers that do not suffice -------------------------------------------------------------------------------------


def test_standby_without_the_newest_common_step_does_not_get_the_rank_and_the_next_is_asked() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=2))
    first, second = training(desk, 10, 20)
    one, two = standby(desk, "s0"), standby(desk, "s1")
    lose(desk, second)
    answer(one, 10)
    [declined] = reasons(desk, EventKind.TAKEOVER_DECLINED)
    assert declined == "it cannot read the rank's file of step 20; its newest is step 10"
    assert row(desk, "worker_1").rank == 1
    answer(two, 20)
    assert row(desk, "s1").rank == 1
    first.ready(checkpoint(20, path="worker_0/20"))
    assert two.follow().step == 20


def test_who_declined_is_not_asked_again_until_it_registers_again() -> None:
    desk = Desk(RULES)
    first, second = training(desk, 10)
    waits = standby(desk)
    lose(desk, second)
    answer(waits)
    first.beat()
    desk.at(desk.now + 20_000)
    assert waits.hears(m.Offer) == 1
    waits.die()
    waits.register()
    assert waits.hears(m.Offer) == 1, "on the new connection"


def test_successor_takes_the_rank_when_nobody_can_read_its_newest_file() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=1))
    first, second = training(desk, 10, 20)
    elsewhere = standby(desk, host="10.0.0.9")
    lose(desk, second)
    successor = standby(desk, "worker_1.2", replaces="worker_1")
    answer(elsewhere)
    assert row(desk, "worker_1").rank == 1
    answer(successor, 10)
    assert row(desk, "worker_1").rank == 1, "the other one might have come with more"
    assert successor.hears(m.Offer) == 2
    answer(successor, 10)
    assert row(desk, "worker_1.2").rank == 1
    [taken] = reasons(desk, EventKind.RANK_TAKEN_OVER)
    assert taken == (
        "connection closed; it cannot read the rank's file of step 20; its newest is step 10, and nobody reads more"
    )
    first.ready(checkpoint(20, path="worker_0/20"), checkpoint(10, path="worker_0/10"))
    assert successor.follow().step == 10


def test_anybody_on_its_host_takes_the_rank_of_who_is_not_started_again() -> None:
    """Its successor has taken another rank: no process comes for this one any more."""
    desk = Desk(Rules(worker_count=2, standby_count=2))
    first, second = training(desk, 10, 20)
    lose(desk, first)
    lose(desk, second)
    elsewhere = standby(desk, host="10.0.0.9")
    successor = standby(desk, "worker_1.2", replaces="worker_1")
    answer(elsewhere, of="worker_0", rank=0)
    answer(successor)
    assert successor.last(m.Offer).rank == 0, "it has declined the rank that it came for"
    answer(successor, 20, 10, of="worker_0", rank=0)
    assert row(desk, "worker_1.2").rank == 0
    answer(elsewhere)
    assert row(desk, "worker_1").rank == 1, "it is on another host"
    waits = standby(desk, "s1")
    answer(waits, 10)
    assert row(desk, "worker_1").rank == 1, "another one might have come with more"
    answer(waits, 10)
    assert row(desk, "s1").rank == 1


def test_anybody_on_its_host_takes_the_rank_whose_place_has_had_several_processes() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=2))
    first, second = training(desk, 10, 20)
    lose(desk, first)
    lose(desk, second)
    for name, before in (("worker_1.2", "worker_1"), ("worker_1.3", "worker_1.2")):
        successor = standby(desk, name, replaces=before)
        for _ in range(2):
            if successor.last(m.Offer).rank == 1:
                answer(successor)
        answer(successor, 20, 10, of="worker_0", rank=0)
        assert row(desk, name).rank == 0
        if name == "worker_1.2":
            lose(desk, successor)
    waits = standby(desk, "s1")
    for _ in range(2):
        answer(waits, 10)
    assert row(desk, "s1").rank == 1


def test_offer_that_is_not_answered_lapses_and_a_late_answer_leads_to_another_offer() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=2))
    _, second = training(desk, 10)
    one, two = standby(desk, "s0"), standby(desk, "s1")
    lose(desk, second)
    for _ in range(4):
        desk.at(desk.now + 3_000)
        one.beat()
        two.beat()
    [declined] = reasons(desk, EventKind.TAKEOVER_DECLINED)
    assert declined == "it did not answer within 10 s (MS_ABORT_TIMEOUT)"
    assert two.hears(m.Offer) == 1
    answer(two)
    assert one.hears(m.Offer) == 1
    answer(one, 10)
    assert one.hears(m.Offer) == 2, "late, so it is asked again"
    answer(one, 10)
    assert row(desk, "s0").rank == 1


def test_answer_of_who_was_not_asked_means_nothing() -> None:
    desk = Desk(RULES)
    training(desk, 10)
    waits = standby(desk)
    heard = answer(waits, 10)
    assert [type(one) for one in heard] == [m.Received]
    assert (row(desk, "worker_1").rank, row(desk, "s0").rank) == (1, None)
    assert job(desk).state is JobState.RUNNING


def test_holder_that_comes_back_while_its_rank_is_offered_keeps_it() -> None:
    desk = Desk(RULES)
    first, second = training(desk, 10)
    waits = standby(desk)
    lose(desk, second)
    assert isinstance(second.register(), m.Admitted)
    assert reasons(desk, EventKind.TAKEOVER_DECLINED) == ["worker_1 is back, or nobody is waited for"]
    answer(waits, 10)
    assert (row(desk, "worker_1").rank, row(desk, "s0").rank) == (1, None)
    first.ready(checkpoint(10, path="worker_0/10"))
    second.ready(checkpoint(10, path="worker_1/10"))
    assert second.follow().rank == 1


def test_offer_to_a_standby_that_is_gone_goes_to_the_next_at_once() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=2))
    _, second = training(desk, 10)
    one, two = standby(desk, "s0"), standby(desk, "s1")
    lose(desk, second)
    one.die()
    assert two.hears(m.Offer) == 1
    assert reasons(desk, EventKind.TAKEOVER_DECLINED) == ["its connection closed before it answered"]


def test_job_that_ends_while_a_rank_is_offered_ends_for_the_standby_too() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=1, topology_timeout_ms=5_000))
    _, second = training(desk, 10)
    waits = standby(desk)
    lose(desk, second)
    desk.at(desk.now + 5_000)
    assert waits.hears(m.JobEnded) == 1
    assert reasons(desk, EventKind.TAKEOVER_DECLINED) == ["worker_1 is back, or nobody is waited for"]
