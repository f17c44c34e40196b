"""Who is let in as a standby, what becomes of the one that was replaced, and who sits where while the job forms."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.records import JobState, NodeState
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, checkpoint, running_workers
from tests.core.standbys import (
    GRACE_MS,
    RULES,
    answer,
    job,
    lose,
    pass_the_window,
    row,
    slot,
    standby,
    taken_over,
    training,
)

# --- the one that was replaced ---------------------------------------------------------------------------------------


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


def test_what_a_process_holds_under_its_own_name_is_not_taken_for_the_ranks_files() -> None:
    desk = Desk(RULES)
    first, waits, _ = taken_over(desk)
    pass_the_window(desk, first, waits)
    fresh = standby(desk, "worker_1")
    lose(desk, waits)
    answer(fresh, 20, of="s0", written_in=2)
    assert (row(desk, "worker_1").rank, slot(desk, "worker_1")) == (1, "worker_1")

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


# --- places ----------------------------------------------------------------------------------------------------------


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
    assert 'for the rank of "worker_1", whose process is connected' in refused.reason
    second.die()
    refused = fresh.register()
    assert isinstance(refused, m.Refused)
    assert (refused.code, refused.retry_after_ms, refused.holder_connected) == ("NODE_ALIVE", 500, False)
    desk.at(desk.now + GRACE_MS)
    assert isinstance(fresh.register(), m.Admitted)
    refused = Worker(desk, "worker_1.3", replaces="worker_1").register()
    assert isinstance(refused, m.Refused)
    assert refused.code == "WORLD_FULL", "one for each vacant slot"
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


def test_first_id_waits_while_the_holder_of_its_place_may_be_gone_without_a_word() -> None:
    desk = Desk(Rules(worker_count=2))
    first, second = training(desk, 10)
    lose(desk, second)
    fresh = Worker(desk, "worker_1.2", replaces="worker_1")
    fresh.register()
    answer(fresh, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    for one in (first, fresh):
        one.follow()
    pass_the_window(desk, first, fresh)
    # Its host loses power: no connection closes. The launcher is started again, with the first ids.
    again = Worker(desk, "worker_1")
    again.stays = True
    refused = again.register()
    assert isinstance(refused, m.Refused)
    assert (refused.code, refused.retry_after_ms, refused.holder_connected) == ("NODE_ALIVE", 1_000, True)
    assert 'for the rank of "worker_1.2", whose process is connected' in refused.reason
    for _ in range(11):
        desk.at(desk.now + 3_000)
        first.beat()
    assert row(desk, "worker_1.2").state is NodeState.LOST
    assert again.told().standby, "told the moment that its holder is lost"
    answer(again, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    assert again.follow().rank == 1


def test_who_comes_for_a_lost_rank_is_not_given_another_that_is_lost_too() -> None:
    desk = Desk(Rules(worker_count=2))
    first, second = training(desk, 10)
    lose(desk, first)
    lose(desk, second)
    for_the_second = Worker(desk, "worker_1.2", replaces="worker_1")
    for_the_second.register()
    assert for_the_second.last(m.Offer).rank == 1
    for_the_first = Worker(desk, "worker_0.2", replaces="worker_0")
    for_the_first.register()
    assert for_the_first.last(m.Offer).rank == 0
    answer(for_the_first, 10, of="worker_0", rank=0)
    answer(for_the_second, 10)
    assert [one.follow().rank for one in (for_the_first, for_the_second)] == [0, 1]


def test_who_has_declined_its_own_rank_may_take_another_and_whose_place_that_was_takes_the_one_left() -> None:
    """All processes of a host were started again under their first ids, and one of them is there first."""
    desk = Desk(Rules(worker_count=2))
    first, second = training(desk, 10)
    lose(desk, first)
    lose(desk, second)
    again = Worker(desk, "worker_1.2", replaces="worker_1")
    again.register()
    answer(again)
    answer(again, 10, of="worker_0", rank=0)
    assert (row(desk, "worker_1.2").rank, slot(desk, "worker_1.2")) == (0, "worker_0")
    pass_the_window(desk, again)
    late = Worker(desk, "worker_0")
    admitted = late.register()
    assert isinstance(admitted, m.Admitted), "rank 1 is left, and nobody else comes for it"
    assert admitted.standby
    answer(late, 10)
    again.ready(checkpoint(10, path="worker_0/10"))
    assert [one.follow().rank for one in (again, late)] == [0, 1]


def test_standby_that_has_warmed_up_is_asked_before_one_on_the_host_of_the_lost_one() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=2))
    _, second = training(desk, 10)
    cold = Worker(desk, "s0", standby=True)
    cold.register()
    warm = standby(desk, "s1", host="10.0.0.9")
    lose(desk, second)
    assert (warm.hears(m.Offer), cold.hears(m.Offer)) == (1, 0)


# --- while the job forms ---------------------------------------------------------------------------------------------


def test_while_the_job_forms_a_successor_sits_on_the_slot_of_the_lost_one() -> None:
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


def test_name_whose_slot_a_successor_holds_while_the_job_forms_gets_it_back_when_that_one_is_lost() -> None:
    desk = Desk(Rules(worker_count=2))
    never = Worker(desk, "1.2", replaces="1")
    never.register()
    lose(desk, never)
    assert isinstance(Worker(desk, "1").register(), m.Admitted)
    assert slot(desk, "1.2") == ""
    successor = Worker(desk, "1.3", replaces="1.2")
    refused = successor.register()
    assert isinstance(refused, m.Refused)
    assert refused.code == "WORLD_FULL", "the slot that it comes for is taken"


@pytest.mark.parametrize("names", [("0", "1"), ("worker_0", "worker_1")])
def test_while_the_job_forms_a_successor_whose_slot_a_standby_has_taken_waits_as_one(
    names: tuple[str, str],
) -> None:
    desk = Desk(RULES)
    lost = Worker(desk, names[0])
    lost.register()
    taker = standby(desk)
    lose(desk, lost)
    assert slot(desk, "s0") == names[0]
    successor = Worker(desk, f"{names[0]}.2", replaces=names[0])
    admitted = successor.register()
    assert isinstance(admitted, m.Admitted)
    assert admitted.standby
    other = Worker(desk, names[1])
    admitted = other.register()
    assert isinstance(admitted, m.Admitted)
    assert not admitted.standby, "its slot is its own"
    for one in (taker, other, successor):
        one.ready()
    assert (taker.follow().rank, other.follow().rank) == (0, 1)


def test_while_the_job_forms_a_standby_takes_the_slot_of_a_lost_worker_at_once() -> None:
    desk = Desk(RULES)
    first, second = Worker(desk, "0"), Worker(desk, "1")
    for one in (first, second):
        one.register()
    waits = standby(desk)
    lose(desk, second)
    assert slot(desk, "s0") == "1"
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
    assert slot(desk, "s0") == ""
    assert waits.hears(m.Offer) == 0


def test_waiting_process_takes_a_slot_that_has_become_free_when_it_comes_back() -> None:
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
    assert slot(desk, "w2") == "w2"
