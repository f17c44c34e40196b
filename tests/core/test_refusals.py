"""Whoever invents names, or addresses, is given a bounded number of rows."""

from __future__ import annotations

from recovery.core.ids import NodeId
from recovery.core.scheduler.refused import ADDRESSES_MAX, NAMED_MAX, PERIOD_MS, REMEMBERED, Refusals


def note(refusals: Refusals, name: str, *, peer: str = "h", at: int = 0, is_known: bool = False) -> int:
    return refusals.note(NodeId(name), "WORLD_FULL", peer=peer, is_known=is_known, now_ms=at)


def test_beyond_a_host_of_names_an_address_gets_one_row_a_minute() -> None:
    refusals = Refusals()
    assert [note(refusals, f"n{number}") for number in range(NAMED_MAX)] == [1] * NAMED_MAX
    rows = [note(refusals, f"m{at}", at=at) for at in range(1, 3 * PERIOD_MS, 100)]
    assert [row for row in rows if row] == [601, 600]


def test_one_address_does_not_hide_another() -> None:
    refusals = Refusals()
    for number in range(100):
        note(refusals, f"n{number}")
    assert note(refusals, "other", peer="g") == 1


def test_a_known_node_is_always_told_of() -> None:
    refusals = Refusals()
    for number in range(REMEMBERED + 1):
        note(refusals, f"n{number}")
    assert note(refusals, "worker_0", is_known=True) == 1
    assert note(refusals, "worker_0", is_known=True) == 0
    refusals.forget(NodeId("worker_0"))
    assert note(refusals, "worker_0", is_known=True) == 1


def test_who_uses_a_known_id_with_one_fault_after_the_other_gets_one_row_a_minute() -> None:
    refusals = Refusals()
    rows = [
        refusals.note(NodeId("worker_0"), code, peer="h", is_known=True, now_ms=0)
        for _ in range(500)
        for code in ("PROTOCOL_VERSION", "JOB_MISMATCH")
    ]
    assert sum(map(bool, rows)) == NAMED_MAX
    assert note(refusals, "worker_0", is_known=True, at=PERIOD_MS) == 1_000 - NAMED_MAX + 1
    assert note(refusals, "worker_1", is_known=True) == 1, "another one is counted by itself"
    refusals.forget(NodeId("worker_0"))
    assert note(refusals, "worker_0", is_known=True, at=PERIOD_MS) == 1, "it was in: this is news"


def test_many_addresses_are_counted_as_one() -> None:
    refusals = Refusals()
    rows = [note(refusals, f"n{number}", peer=f"p{number}") for number in range(ADDRESSES_MAX + 100)]
    assert sum(rows) == ADDRESSES_MAX + NAMED_MAX
