"""Who is let in beside the world: the id by which a vacant slot is called, and who has no place for what reason."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.ids import NodeId, Rank
from recovery.core.records import EventKind
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, begin, running_workers

GRACE_MS = 600
WINDOW_MS = 30_000


def lose(desk: Desk, worker: Worker) -> None:
    """It dies, and its grace goes by."""
    worker.die()
    desk.at(desk.now + GRACE_MS)


def test_the_id_of_a_vacant_slot_is_let_in_though_another_id_held_it_last() -> None:
    desk = Desk(Rules(worker_count=2))
    workers = running_workers(desk)
    lose(desk, workers[1])
    fresh = Worker(desk, "worker_1.2", replaces=NodeId("worker_1"))
    assert isinstance(fresh.register(), m.Admitted)
    fresh.ready()
    fresh.send(
        m.Ready(request_id=fresh.request(), generation=fresh.generation, step=0, held=(), rank=Rank(1))
    )
    assert EventKind.RANK_TAKEN_OVER in desk.kinds()
    lose(desk, fresh)
    desk.at(desk.now + WINDOW_MS)

    again = Worker(desk, "worker_1").register()

    assert isinstance(again, m.Admitted), again
    assert again.standby


def test_the_id_of_a_slot_whose_holder_may_still_come_back_waits_and_is_not_too_many() -> None:
    """Their launcher and the scheduler died together: nobody knows yet that the holder is dead."""
    desk = Desk(Rules(worker_count=2, rejoin_window_ms=0))
    lose(desk, running_workers(desk)[1])
    fresh = Worker(desk, "worker_1.2", replaces=NodeId("worker_1"))
    fresh.register()
    fresh.ready()
    fresh.send(
        m.Ready(request_id=fresh.request(), generation=fresh.generation, step=0, held=(), rank=Rank(1))
    )
    comes = Worker(desk, "worker_1")
    while_connected = comes.register()
    fresh.die()
    while_suspect = Worker(desk, "worker_1").register()

    assert isinstance(while_connected, m.Refused)
    assert (while_connected.code, while_connected.holder_connected) == ("NODE_ALIVE", True)
    assert isinstance(while_suspect, m.Refused)
    assert (while_suspect.code, while_suspect.retry_after_ms is None) == ("NODE_ALIVE", False)
    assert 'node "worker_1" comes for the rank of "worker_1.2"' in while_suspect.reason


def test_an_id_of_another_name_is_not_let_in_for_a_vacant_slot() -> None:
    desk = Desk(Rules(worker_count=2))
    lose(desk, running_workers(desk)[1])
    refused = Worker(desk, "worker_7").register()
    assert isinstance(refused, m.Refused)
    assert refused.code == "WORLD_FULL"


def test_a_standby_too_many_is_told_so_beside_ids_that_are_ranks_too() -> None:
    desk = Desk(Rules(worker_count=1, standby_count=0))
    assert isinstance(Worker(desk, "0").register(), m.Admitted)
    refused = Worker(desk, "standby_0", standby=True).register()
    assert isinstance(refused, m.Refused)
    assert refused.code == "WORLD_FULL"
    assert "MS_STANDBY_NUM=0" in refused.reason


def test_nobody_is_refused_for_good_while_a_standby_may_be_gone() -> None:
    """A launcher starts nobody again who is too many: then a place would stay empty once that one is known as lost."""
    desk = Desk(Rules(worker_count=2, standby_count=1))
    running_workers(desk)
    waits = Worker(desk, "s0", standby=True)
    assert isinstance(waits.register(), m.Admitted)
    waits.die()
    another = Worker(desk, "s1", standby=True)

    refused = another.register()

    assert isinstance(refused, m.Refused)
    assert (refused.code, refused.retry_after_ms, refused.holder_connected) == ("NODE_ALIVE", 500, False)
    assert 'finds all places taken, one of them by "s0", whose process is not connected' in refused.reason
    desk.at(desk.now + GRACE_MS)
    assert isinstance(another.register(), m.Admitted)


def test_nobody_is_refused_for_good_while_the_holder_of_a_place_of_a_forming_job_may_be_gone() -> None:
    desk = Desk(Rules(worker_count=2))
    first, second = Worker(desk, "worker_0"), Worker(desk, "worker_1")
    for one in (first, second):
        assert isinstance(one.register(), m.Admitted)
    second.die()
    another = Worker(desk, "worker_2")

    refused = another.register()

    assert isinstance(refused, m.Refused)
    assert (refused.code, refused.retry_after_ms) == ("NODE_ALIVE", 500)
    desk.at(desk.now + GRACE_MS)
    assert isinstance(another.register(), m.Admitted)


def test_the_holder_of_a_rank_that_may_be_gone_is_in_the_way_of_those_who_could_take_it_only() -> None:
    desk = Desk(Rules(worker_count=2))
    running_workers(desk)[1].die()

    stranger = Worker(desk, "worker_7").register()
    comes = Worker(desk, "worker_7.2", replaces=NodeId("worker_7")).register()

    assert isinstance(stranger, m.Refused)
    assert stranger.code == "WORLD_FULL"
    assert isinstance(comes, m.Refused)
    assert comes.code == "NODE_ALIVE"


def test_the_only_one_on_the_host_of_a_vacant_rank_is_let_in_beside_standbys_of_other_hosts() -> None:
    """Where the rank's files are gone for good, nobody else may say so: they may lie where only that host reads them."""
    desk = Desk(Rules(worker_count=2, standby_count=1))
    names = ("worker_0", "worker_1")
    workers = [Worker(desk, name, host=host) for name, host in zip(names, ("a", "b"), strict=True)]
    begin(workers)
    for number in (1, 2):
        elsewhere = Worker(desk, f"s{number}", standby=True, host="a", replaces=NodeId("s0"))
        if number == 2:
            lose(desk, workers[1])
        assert isinstance(elsewhere.register(), m.Admitted)

    refused = Worker(desk, "s4", host="a", replaces=NodeId("s0")).register()
    assert isinstance(refused, m.Refused)
    assert refused.code == "WORLD_FULL"
    unasked = Worker(desk, "s5", host="b", standby=True).register()
    assert isinstance(unasked, m.Refused)
    assert unasked.code == "WORLD_FULL"
    assert isinstance(Worker(desk, "s3.2", host="b", replaces=NodeId("s3")).register(), m.Admitted)
    too_many = Worker(desk, "s6.2", host="b", replaces=NodeId("s6")).register()
    assert isinstance(too_many, m.Refused)
    assert too_many.code == "WORLD_FULL"
