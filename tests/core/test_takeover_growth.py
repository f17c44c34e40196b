"""Processes that claim a place, or decline one, thousands of times: neither rows nor lines grow by it, and nobody loses a place."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.ids import NodeId
from recovery.core.records import EventKind, NodeState
from tests.core.desk import Desk, Worker, checkpoint
from tests.core.standbys import RULES, answer, lose, pass_the_window, reasons, row, standby, training

TIMES = 2_000


def size(desk: Desk) -> tuple[int, int, int]:
    """Rows, events and nodes of a scheduler."""
    return len(desk.rows), len(desk.events), len(desk.machine.state.nodes)


CLAIMS = {
    "a standby without a place": ("claimant", {"standby": True}, "WORLD_FULL"),
    "the successor of who is alive": ("claimant", {"replaces": NodeId("worker_1")}, "NODE_ALIVE"),
    "a standby and the successor of who is alive": (
        "claimant",
        {"standby": True, "replaces": NodeId("worker_1")},
        "NODE_ALIVE",
    ),
    "the successor of nobody": ("claimant", {"replaces": NodeId("worker_9")}, "WORLD_FULL"),
    "the successor of itself": ("claimant", {"replaces": NodeId("claimant")}, "WORLD_FULL"),
    "who is alive, as a standby": ("worker_1", {"standby": True}, "NODE_ALIVE"),
    "who is alive, as its own successor": ("worker_1", {"replaces": NodeId("worker_1")}, "NODE_ALIVE"),
    "a standby that is alive": ("s0", {"standby": True}, "NODE_ALIVE"),
    "who is alive, in the place of another": ("worker_1", {"replaces": NodeId("worker_0")}, "NODE_ALIVE"),
}


@pytest.mark.parametrize("stays", [False, True], ids=["hangs up", "stays"])
@pytest.mark.parametrize(("name", "fields", "code"), CLAIMS.values(), ids=CLAIMS)
def test_a_claim_that_is_refused_thousands_of_times_is_one_line(
    name: str, fields: dict[str, object], code: str, *, stays: bool
) -> None:
    desk = Desk(RULES)
    workers = [*training(desk, 10), standby(desk)]
    rows, events, nodes = size(desk)
    open_connections = len(desk.machine.state.speakers)
    for number in range(TIMES):
        claimant = Worker(desk, name, **fields)
        claimant.stays = stays
        refused = claimant.register()
        assert isinstance(refused, m.Refused)
        assert refused.code == code
        if number % 100 == 0:
            for one in workers:
                one.beat()
    assert size(desk) == (rows, events + 1, nodes)
    assert len(desk.machine.state.speakers) == open_connections
    assert {row(desk, one.node_id).state for one in workers} == {NodeState.LIVE}
    assert [row(desk, name).rank for name in ("worker_0", "worker_1", "s0")] == [0, 1, None]


def test_claims_under_thousands_of_names_hold_a_bounded_number_of_connections() -> None:
    desk = Desk(RULES)
    training(desk, 10)
    standby(desk)
    rows, _, nodes = size(desk)
    for number in range(TIMES):
        claimant = Worker(desk, f"claimant_{number}", replaces=NodeId("worker_1"))
        claimant.stays = True
        assert isinstance(claimant.register(), m.Refused)
    assert (len(desk.rows), len(desk.machine.state.nodes)) == (rows, nodes)
    assert len(desk.kept - desk.closed) < 100


def declines(desk: Desk) -> int:
    return len(reasons(desk, EventKind.TAKEOVER_DECLINED))


def asked_again_and_again() -> tuple[Desk, Worker, Worker]:
    """A standby that has said thousands of times that it reads nothing, and was asked again each second time."""
    desk = Desk(RULES)
    first, second = training(desk, 10)
    waits = standby(desk)
    lose(desk, second)
    for _ in range(TIMES + 1):
        answer(waits)
    assert waits.hears(m.Offer) >= TIMES / 2, "what is not asked again proves nothing"
    return desk, first, waits


def test_a_rank_that_one_standby_declines_again_and_again_is_one_line() -> None:
    desk, _, _ = asked_again_and_again()
    assert reasons(desk, EventKind.TAKEOVER_DECLINED) == [
        "it cannot read the rank's file of step 10; its newest is none"
    ]


def test_a_standby_whose_connection_breaks_again_and_again_is_one_line() -> None:
    desk, _, waits = asked_again_and_again()
    for _ in range(20):
        waits.register()
        assert waits.hears(m.Offer) == 1, "it came back, so it is asked"
        waits.die()
        waits.register()
        answer(waits)
        waits.die()
    assert declines(desk) == 2, "it reads nothing, and its connection closed before it answered"


def test_another_reason_and_another_process_are_news() -> None:
    desk, first, waits = asked_again_and_again()
    answer(waits, 5)
    answer(waits, 5)
    assert declines(desk) == 2, "it reads another step"
    lose(desk, waits)
    pass_the_window(desk, first)
    again = standby(desk)
    answer(again, 5)
    assert declines(desk) == 3, "another process of the id"


def test_the_next_loss_of_the_rank_is_reported_again() -> None:
    desk, first, waits = asked_again_and_again()
    successor = standby(desk, "worker_1.2", replaces="worker_1")
    answer(successor, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    assert successor.follow().rank == 1
    answer(waits)
    lose(desk, successor)
    answer(waits)
    assert declines(desk) == 2
