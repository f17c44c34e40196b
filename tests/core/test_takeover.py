"""Standbys at the scheduler's machine: who is offered which rank, what an answer means, how the seat changes hands."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.ids import Rank
from recovery.core.records import EventKind, JobRecord, JobState, NodeRecord, NodeState, SeatRecord
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, checkpoint, running_workers

RULES = Rules(worker_count=2, standby_count=1)
GRACE_MS = 600


def standby(desk: Desk, name: str = "s0", **fields: object) -> Worker:
    """A standby that waits."""
    one = Worker(desk, name, standby=True, **fields)
    admitted = one.register()
    assert isinstance(admitted, m.Admitted), admitted
    assert (admitted.rank, admitted.standby) == (None, True)
    one.ready()
    return one


def training(desk: Desk, *steps: int) -> list[Worker]:
    """Two workers that train and have saved."""
    workers = running_workers(desk)
    for step in steps:
        for worker in workers:
            worker.save(step)
    return workers


def lose(desk: Desk, worker: Worker) -> None:
    """It dies, and its grace goes by."""
    worker.die()
    desk.at(desk.now + GRACE_MS)


def answer(
    one: Worker, *steps: int, of: str = "worker_1", rank: int = 1, written_in: int = 1
) -> list[m.FromScheduler]:
    """Say which of a rank's files it can read."""
    held = tuple(checkpoint(step, path=f"{of}/{step}", generation=written_in) for step in steps)
    return one.send(
        m.Ready(
            request_id=one.request(),
            generation=one.generation,
            step=0,
            held=held,
            rank=Rank(rank),
        )
    )


def row(desk: Desk, name: str) -> NodeRecord:
    """A node as it is stored."""
    return next(one for one in desk.row(NodeRecord) if one.node_id == name)


def seat(desk: Desk, name: str) -> str | None:
    """Its seat as it is stored; None: no row."""
    return next((one.seat for one in desk.row(SeatRecord) if one.node_id == name), None)


def reasons(desk: Desk, kind: EventKind) -> list[str]:
    return [event.reason for event in desk.events if event.kind is kind]


def job(desk: Desk) -> JobRecord:
    return desk.row(JobRecord)[0]


# --- the way that it goes -----------------------------------------------------------------------------------------------


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
    assert (seat(desk, "worker_1"), seat(desk, "s0")) == ("", "worker_1")
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
    assert (seat(desk, "s0"), seat(desk, "s1")) == ("", "worker_1")


# --- who is asked -------------------------------------------------------------------------------------------------------


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


# --- answers that do not suffice ----------------------------------------------------------------------------------------


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


def test_who_was_started_in_the_place_of_the_lost_one_takes_its_rank_when_nobody_can_read_its_newest_file() -> (
    None
):
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


# --- the one that was replaced ------------------------------------------------------------------------------------------


def test_replaced_process_is_fenced_and_its_id_returns_as_a_standby_after_its_window() -> None:
    desk = Desk(RULES)
    first, second = training(desk, 10)
    waits = standby(desk)
    lose(desk, second)
    answer(waits, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    first.follow()
    waits.follow()

    refused = second.register()
    assert isinstance(refused, m.Refused)
    assert refused.code == "FENCED"
    fresh = Worker(desk, "worker_1")
    refused = fresh.register()
    assert isinstance(refused, m.Refused)
    assert refused.code == "REJOIN_WINDOW"
    for _ in range(11):
        desk.at(desk.now + 3_000)
        first.beat()
        waits.beat()
    admitted = fresh.register()
    assert isinstance(admitted, m.Admitted)
    assert (admitted.rank, admitted.standby, admitted.incarnation) == (None, True, 2)
    assert job(desk).state is JobState.RUNNING


def pass_the_window(desk: Desk, *alive: Worker) -> None:
    """Let the window of a lost id go by."""
    for _ in range(11):
        desk.at(desk.now + 3_000)
        for one in alive:
            one.beat()


def taken_over(desk: Desk) -> tuple[Worker, Worker, Worker]:
    """worker_0 and s0 train in generation 2, s0 with the rank of worker_1, which is lost; they have saved step 20."""
    first, second = training(desk, 10)
    waits = standby(desk)
    lose(desk, second)
    answer(waits, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    for one in (first, waits):
        one.follow()
        one.save(20)
    return first, waits, second


def test_what_a_process_holds_under_its_own_name_is_not_taken_for_the_ranks_files() -> None:
    desk = Desk(RULES)
    first, waits, _ = taken_over(desk)
    pass_the_window(desk, first, waits)
    fresh = standby(desk, "worker_1")
    lose(desk, waits)
    answer(fresh, 20, of="s0", written_in=2)
    assert (row(desk, "worker_1").rank, seat(desk, "worker_1")) == (1, "worker_1")

    # This search began before it was asked.
    fresh.ready(checkpoint(10, path="worker_1/10"))
    first.ready(checkpoint(20, generation=2, path="worker_0/20"))
    plan = fresh.follow()
    assert (plan.step, plan.path) == (20, "s0/20")


def test_fresh_process_in_the_place_of_another_name_is_sent_where_the_files_lie() -> None:
    desk = Desk(RULES)
    first, waits, _ = taken_over(desk)
    lose(desk, waits)
    pass_the_window(desk, first)
    again = Worker(desk, "s0", standby=True)
    admitted = again.register()
    assert isinstance(admitted, m.Admitted)
    assert (admitted.rank, admitted.standby) == (1, False)
    offer = again.last(m.Offer)
    assert (offer.rank, offer.replaced) == (1, "worker_1")
    assert [one.path for one in offer.held] == ["s0/20", "worker_1/10"]

    first.ready(checkpoint(20, generation=2, path="worker_0/20"))
    again.ready()
    assert job(desk).state is JobState.INTERRUPTED, "it has not said what it holds of the rank"
    answer(again, 20, of="s0", written_in=2)
    assert again.follow().step == 20


def test_process_that_replaced_itself_in_the_place_of_another_name_is_sent_it_too() -> None:
    desk = Desk(RULES)
    first, waits, _ = taken_over(desk)
    token = waits.token
    waits.die()
    again = Worker(desk, "s0", standby=True)
    again.token = token
    assert isinstance(again.register(), m.Admitted)
    assert again.last(m.Offer).rank == 1
    answer(again, 20, of="s0", written_in=2)
    first.ready(checkpoint(20, generation=2, path="worker_0/20"))
    assert again.follow().step == 20


# --- places -------------------------------------------------------------------------------------------------------------


def test_standby_without_a_place_is_refused_by_name() -> None:
    desk = Desk(RULES)
    training(desk)
    standby(desk)
    refused = Worker(desk, "s1", standby=True).register()
    assert isinstance(refused, m.Refused)
    assert refused.code == "WORLD_FULL"
    assert "MS_STANDBY_NUM=1" in refused.reason


def test_without_recovery_there_are_no_standbys() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=1, recovery_enabled=False))
    refused = Worker(desk, "s0", standby=True).register()
    assert isinstance(refused, m.Refused)
    assert refused.code == "WORLD_FULL"
    assert "MS_ENABLE_RECOVERY=0" in refused.reason


def test_surplus_worker_waits_as_a_standby_where_there_is_a_place() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=1))
    running_workers(desk, "0", "1")
    admitted = Worker(desk, "2").register()
    assert isinstance(admitted, m.Admitted)
    assert admitted.standby
    assert isinstance(Worker(desk, "3").register(), m.Refused)


def test_lost_standby_comes_back_by_its_token_as_one() -> None:
    desk = Desk(RULES)
    training(desk)
    waits = standby(desk)
    lose(desk, waits)
    admitted = waits.register()
    assert isinstance(admitted, m.Admitted)
    assert (admitted.resumed, admitted.standby) == (True, True)
    lose(desk, waits)
    standby(desk, "s1")
    refused = waits.register()
    assert isinstance(refused, m.Refused)
    assert refused.code == "FENCED", "its place is taken"


def test_process_started_for_a_lost_rank_waits_until_it_is_lost_and_needs_no_place() -> None:
    desk = Desk(Rules(worker_count=2))
    first, second = training(desk, 10)
    fresh = Worker(desk, "worker_1.2", replaces="worker_1")
    refused = fresh.register()
    assert isinstance(refused, m.Refused)
    assert (refused.code, refused.retry_after_ms, refused.holder_connected) == ("NODE_ALIVE", 1_000, True)
    assert 'for the rank of "worker_1" (MS_REPLACES), whose process is connected' in refused.reason
    second.die()
    refused = fresh.register()
    assert isinstance(refused, m.Refused)
    assert (refused.code, refused.retry_after_ms, refused.holder_connected) == ("NODE_ALIVE", 500, False)
    desk.at(desk.now + GRACE_MS)
    assert isinstance(fresh.register(), m.Admitted)
    refused = Worker(desk, "worker_1.3", replaces="worker_1").register()
    assert isinstance(refused, m.Refused)
    assert refused.code == "WORLD_FULL", "one for each vacant seat"
    answer(fresh, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    assert fresh.follow().rank == 1


def test_successor_of_a_successor_that_never_took_the_rank_is_let_in() -> None:
    desk = Desk(Rules(worker_count=2))
    first, second = training(desk, 10)
    lose(desk, second)
    short = Worker(desk, "worker_1.2", replaces="worker_1")
    short.register()
    lose(desk, short)
    # The one between was never seen here.
    for name, before in (("worker_1.3", "worker_1.2"), ("worker_1.5", "worker_1.4")):
        fresh = Worker(desk, name, replaces=before)
        assert isinstance(fresh.register(), m.Admitted)
        lose(desk, fresh)
    fresh = Worker(desk, "worker_1.6", replaces="worker_1.5")
    fresh.register()
    answer(fresh, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    assert fresh.follow().rank == 1


# --- while the job forms ------------------------------------------------------------------------------------------------


def test_while_the_job_forms_a_successor_sits_on_the_seat_of_the_lost_one() -> None:
    desk = Desk(Rules(worker_count=3))
    workers = [Worker(desk, str(number)) for number in range(3)]
    for one in workers[:2]:
        one.register()
    lose(desk, workers[0])
    fresh = Worker(desk, "0.2", replaces="0")
    admitted = fresh.register()
    assert isinstance(admitted, m.Admitted)
    assert not admitted.standby
    late = workers[0].register()
    assert isinstance(late, m.Refused)
    assert late.code == "FENCED", "its name is taken"
    # Of an id that was never seen.
    never = Worker(desk, "2.2", replaces="2")
    assert isinstance(never.register(), m.Admitted)
    for one in (fresh, workers[1], never):
        one.ready()
    assert [one.follow().rank for one in (fresh, workers[1], never)] == [0, 1, 2]


def test_name_whose_seat_a_successor_holds_while_the_job_forms_gets_it_back_when_that_one_is_lost() -> None:
    desk = Desk(Rules(worker_count=2))
    never = Worker(desk, "1.2", replaces="1")
    never.register()
    lose(desk, never)
    assert isinstance(Worker(desk, "1").register(), m.Admitted)
    assert seat(desk, "1.2") == ""
    successor = Worker(desk, "1.3", replaces="1.2")
    refused = successor.register()
    assert isinstance(refused, m.Refused)
    assert refused.code == "NODE_ID_INVALID", "no seat is left to it but one of its own name, beside integers"


def test_while_the_job_forms_a_standby_takes_the_seat_of_a_lost_worker_at_once() -> None:
    desk = Desk(RULES)
    first, second = Worker(desk, "0"), Worker(desk, "1")
    for one in (first, second):
        one.register()
    waits = standby(desk)
    lose(desk, second)
    assert seat(desk, "s0") == "1"
    first.ready()
    assert waits.follow().rank == 1
    assert first.follow().rank == 0


def test_job_that_forms_with_a_standby_in_place_of_the_last_one_begins_at_once() -> None:
    desk = Desk(RULES)
    first, second = Worker(desk, "0"), Worker(desk, "1")
    for one in (first, second):
        one.register()
    first.ready()
    standby(desk)
    lose(desk, second)
    assert job(desk).state is JobState.RUNNING


def test_while_a_lost_store_is_built_again_no_standby_sits_down() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=1, rebuild_store=True))
    first, second = Worker(desk, "0"), Worker(desk, "1")
    for one in (first, second):
        one.register()
    waits = standby(desk)
    lose(desk, second)
    assert seat(desk, "s0") == ""
    assert waits.hears(m.Offer) == 0


def test_waiting_process_takes_a_seat_that_has_become_free_when_it_comes_back() -> None:
    desk = Desk(RULES)
    first, second = Worker(desk, "w0"), Worker(desk, "w1")
    for one in (first, second):
        one.register()
    surplus = Worker(desk, "w2")
    admitted = surplus.register()
    assert isinstance(admitted, m.Admitted)
    assert admitted.standby
    second.send(m.Leave(request_id=second.request(), reason="SIGTERM"))
    surplus.die()
    admitted = surplus.register()
    assert isinstance(admitted, m.Admitted)
    assert not admitted.standby
    assert seat(desk, "w2") == "w2"


# --- launchers that give up ---------------------------------------------------------------------------------------------


def exited(desk: Desk, one: Worker) -> None:
    """Its launcher saw it end, and does not start it again."""
    desk.say(desk.connect(), m.Exited(node_id=one.node_id, pid=1, reason="killed by SIGKILL", gives_up=True))


def test_launcher_that_gives_up_a_standby_ends_nothing() -> None:
    desk = Desk(RULES)
    training(desk)
    waits = standby(desk)
    waits.die()
    exited(desk, waits)
    assert row(desk, "s0").state is NodeState.LOST
    assert job(desk).state is JobState.RUNNING


@pytest.mark.parametrize("before_its_loss", [True, False])
def test_worker_that_is_given_up_is_replaced_where_a_standby_can_take_its_rank(before_its_loss: bool) -> None:
    desk = Desk(RULES)
    first, second = training(desk, 10)
    waits = standby(desk)
    second.die()
    if not before_its_loss:
        desk.at(desk.now + GRACE_MS)
    exited(desk, second)
    assert job(desk).state is JobState.INTERRUPTED
    answer(waits, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    assert waits.follow().rank == 1


def test_worker_that_is_given_up_ends_the_job_once_no_standby_can_take_its_rank() -> None:
    desk = Desk(RULES)
    _, second = training(desk, 10)
    waits = standby(desk)
    second.die()
    exited(desk, second)
    answer(waits)
    assert job(desk).state is JobState.FAILED
    assert "killed by SIGKILL; it is not started again, and no standby can take its rank" in job(desk).reason


def test_worker_that_is_given_up_ends_the_job_when_the_last_standby_is_lost() -> None:
    desk = Desk(RULES)
    _, second = training(desk, 10)
    waits = standby(desk)
    second.die()
    exited(desk, second)
    lose(desk, waits)
    assert job(desk).state is JobState.FAILED


# --- restarts -----------------------------------------------------------------------------------------------------------


def back(*workers: Worker) -> None:
    """They find the scheduler's next process."""
    for one in workers:
        assert isinstance(one.register(), m.Admitted)


def test_scheduler_that_is_restarted_with_an_offer_open_asks_again() -> None:
    desk = Desk(RULES)
    first, second = training(desk, 10)
    waits = standby(desk)
    lose(desk, second)
    desk.restart()
    back(first, waits)
    assert waits.last(m.Offer).rank == 1
    answer(waits, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    assert waits.follow().rank == 1


def test_scheduler_that_is_restarted_after_the_seat_moved_knows_who_has_it() -> None:
    desk = Desk(RULES)
    first, second = training(desk, 10)
    waits = standby(desk)
    lose(desk, second)
    answer(waits, 10)
    desk.restart()
    back(first, waits)
    assert waits.last(m.Offer).rank == 1, "it has followed no plan yet: it says again what it can read"
    answer(waits, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    assert waits.follow().rank == 1
    refused = second.register()
    assert isinstance(refused, m.Refused)
    assert refused.code == "FENCED"


def test_worker_that_dies_while_no_scheduler_runs_is_replaced_when_one_does() -> None:
    desk = Desk(RULES)
    first, _ = training(desk, 10)
    waits = standby(desk)
    desk.restart()
    back(first, waits)
    for _ in range(11):
        desk.at(desk.now + 3_000)
        first.beat()
        waits.beat()
    assert waits.last(m.Offer).rank == 1


def test_next_run_gives_its_places_again() -> None:
    desk = Desk(RULES)
    first, waits, _ = taken_over(desk)
    pass_the_window(desk, first, waits)
    old = standby(desk, "worker_1")
    first.done()
    waits.done()
    for one in (first, waits, old):
        one.die()
    desk.at(desk.now + 5_000)
    desk.restart()
    assert job(desk).run == 2
    fresh = standby(desk)
    workers = [Worker(desk, name) for name in ("worker_0", "worker_1")]
    for one in workers:
        one.register()
        one.ready()
    assert [one.follow().rank for one in workers] == [0, 1]
    assert row(desk, fresh.node_id).rank is None
