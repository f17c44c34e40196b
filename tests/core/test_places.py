"""Who is let in beside the world: the id by which a vacant seat is called, and who has no place for what reason."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.ids import NodeId, Rank
from recovery.core.records import EventKind
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, running_workers

GRACE_MS = 600
WINDOW_MS = 30_000


def lose(desk: Desk, worker: Worker) -> None:
    """It dies, and its grace goes by."""
    worker.die()
    desk.at(desk.now + GRACE_MS)


def test_the_id_of_a_vacant_seat_is_let_in_though_another_id_held_it_last() -> None:
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


def test_the_id_of_a_seat_whose_holder_may_still_come_back_waits_and_is_not_too_many() -> None:
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


def test_an_id_of_another_name_is_not_let_in_for_a_vacant_seat() -> None:
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
