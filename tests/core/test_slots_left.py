"""Who gets a slot that is left: while a lost store is built again, and where a process names nobody that it replaces."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.ids import NodeId
from recovery.core.records import JobState
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, begin, checkpoint, running_workers
from tests.core.standbys import GRACE_MS, answer, job, lose, pass_the_window, slot, standby

# --- while a lost store is built again -------------------------------------------------------------------------------


def test_in_a_lost_store_a_worker_that_found_no_slot_takes_that_of_the_next_lost_one() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=2, rebuild_store=True))
    first, second, surplus = (Worker(desk, name) for name in ("w0", "w1", "w2"))
    for one in (first, second, surplus):
        one.register()
    waits = standby(desk)
    lose(desk, second)
    for one in (first, surplus):
        one.ready()
    assert (first.follow().rank, surplus.follow().rank) == (0, 1)
    assert (slot(desk, "w2"), slot(desk, "s0")) == ("w2", ""), (
        "a standby may not, and a worker that came now would"
    )
    assert waits.hears(m.Offer) == 0


def test_in_a_lost_store_the_slot_that_is_left_goes_to_who_is_of_its_place() -> None:
    desk = Desk(Rules(worker_count=2, rebuild_store=True))
    first, second, surplus = (Worker(desk, name) for name in ("w0", "w1", "a"))
    successor = Worker(desk, "w1.2", replaces="w1")
    for one in (first, second, surplus, successor):
        assert isinstance(one.register(), m.Admitted)
    lose(desk, second)
    for one in (first, successor):
        one.ready()
    surplus.ready()
    assert (first.follow().rank, successor.follow().rank) == (0, 1)
    assert (slot(desk, "w1.2"), slot(desk, "a")) == ("w1", ""), "the other one came first"


def test_in_a_lost_store_a_standby_that_had_no_rank_is_none_of_those_that_are_enough() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=1, rebuild_store=True))
    first = Worker(desk, "w0")
    first.register()
    waits = standby(desk)
    for one in (first, waits):
        one.ready()
    assert job(desk).state is JobState.FORMING
    assert slot(desk, "s0") == ""


def test_in_a_lost_store_a_standby_takes_the_slot_of_who_never_comes_back_to_say_what_it_knows() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=1, rebuild_store=True))
    first, second = Worker(desk, "w0"), Worker(desk, "w1")
    for one in (first, second):
        one.register()
    standby(desk)
    lose(desk, second)
    gives_up = m.Exited(node_id=NodeId("w1"), pid=1, reason="killed", gives_up=True)
    desk.say(desk.connect(), gives_up)
    assert slot(desk, "s0") == "w1"
    first.ready()
    assert job(desk).state is JobState.RUNNING


def test_nobody_takes_the_slot_of_a_lost_one_when_all_slots_are_taken_again() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=1))
    first, second = Worker(desk, "w0"), Worker(desk, "w1")
    for one in (first, second):
        one.register()
    lose(desk, second)
    other = Worker(desk, "w2")
    other.register()
    standby(desk)
    assert (slot(desk, "s0"), desk.machine.state.nodes[NodeId("w2")].slot) == ("", "w2")


# --- ids that name nobody --------------------------------------------------------------------------------------------


def test_second_process_of_a_fresh_id_waits_for_the_holder_of_the_place_by_which_it_is_called() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=1))
    first, second = Worker(desk, "w0"), Worker(desk, "w1")
    for one in (first, second):
        one.register()
    second.die()
    # A person starts it, and leaves MS_REPLACES out.
    by_hand = Worker(desk, "w1.2")
    by_hand.stays = True
    refused = by_hand.register()
    assert isinstance(refused, m.Refused)
    assert refused.code == "NODE_ALIVE"
    assert 'for the rank of "w1"' in refused.reason
    desk.at(desk.now + GRACE_MS)
    assert not by_hand.told().standby, "told the moment that the place is free"
    for one in (first, by_hand):
        one.ready()
    assert by_hand.follow().rank == 1


@pytest.mark.parametrize("mine", ["w1", "w1.4"])
def test_id_whose_place_another_ones_successor_holds_is_let_in_for_the_slot_that_is_left(mine: str) -> None:
    desk = Desk(Rules(worker_count=3))
    first, second, third = running_workers(desk, "w0", "w1", "w2")
    for one in (first, second, third):
        one.save(10)
    lose(desk, second)
    # Started by hand for the other place, too early.
    crossed = Worker(desk, "w2.2")
    crossed.register()
    answer(crossed, 10, of="w1")
    assert slot(desk, "w2.2") == "w1"

    lose(desk, third)
    pass_the_window(desk, first, crossed)
    left = Worker(desk, mine)
    admitted = left.register()
    assert isinstance(admitted, m.Admitted), admitted
    assert admitted.standby
    answer(left, 10, of="w2", rank=2)
    first.ready(checkpoint(10, path="w0/10"))
    assert (crossed.follow().rank, left.follow().rank) == (1, 2)


@pytest.mark.parametrize("host", ["10.0.0.1", ""])
def test_process_of_the_host_of_a_vacant_rank_is_let_in_beside_standbys_that_have_declined(host: str) -> None:
    """Its own rank is another's, and it names nobody: its launcher was started again. Without MS_WORKER_IP its host is where it comes from."""
    desk = Desk(Rules(worker_count=3, standby_count=2, rejoin_window_ms=0))
    elsewhere = Worker(desk, "w1", host="b")
    workers = [Worker(desk, "w0", host=host), elsewhere, Worker(desk, "w2", host=host)]
    begin(workers)
    for one in workers:
        one.save(10)
    # The ranks of a host follow each other.
    taker = standby(desk, host="b")
    lose(desk, workers[0])
    answer(taker, 10, of="w0", rank=0)
    assert slot(desk, "s0") == "w0"
    lose(desk, workers[2])
    waiting = [
        standby(desk, "s2", host=host),
        standby(desk, "s1", host="b"),
        standby(desk, "s3.2", host="b", replaces="s3"),
    ]

    again = Worker(desk, "w0", host=host)
    assert isinstance(again.register(), m.Refused), "who waits on that host may take the rank"
    for one in waiting:
        answer(one, of="w2", rank=1)
    admitted = again.register()
    assert isinstance(admitted, m.Admitted), admitted
    assert admitted.standby
    answer(again, 10, of="w2", rank=1)
    assert slot(desk, "w0") == "w2"


# --- slots of several lost ones --------------------------------------------------------------------------------------


def test_of_two_lost_ranks_each_successor_is_offered_its_own_in_whatever_order_they_come() -> None:
    desk = Desk(Rules(worker_count=3))
    first, second, third = running_workers(desk, "w0", "w1", "w2")
    for one in (first, second, third):
        one.save(10)
    for one in (second, third):
        lose(desk, one)
    of_third = Worker(desk, "w2.2", replaces="w2")
    of_third.register()
    assert of_third.last(m.Offer).rank == 2
    of_second = Worker(desk, "w1.2", replaces="w1")
    of_second.register()
    assert of_second.last(m.Offer).rank == 1


def test_an_earlier_id_of_the_place_takes_its_rank_with_what_it_can_read_when_nobody_reads_more() -> None:
    desk = Desk(Rules(worker_count=2))
    first, second = running_workers(desk, "w0", "w1")
    for one in (first, second):
        one.save(10)
    lose(desk, second)
    by_hand = Worker(desk, "w1.4")
    by_hand.register()
    for _ in range(2):
        answer(by_hand)
    assert slot(desk, "w1.4") == "w1"
