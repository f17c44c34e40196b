"""Which host starts a lost rank beside its own."""

from __future__ import annotations

from recovery.launch.job_view import KnownJob, KnownNode
from recovery.launch.ranks_to_take import due

AFTER_MS = 10_000


def node(node_id: str, rank: int | None, host: str, *, lost_ms: int | None = None) -> KnownNode:
    state = "live" if lost_ms is None else "lost"
    return KnownNode(node_id=node_id, rank=rank, host=host, state=state, silent_ms=lost_ms or 0)


def job(lost_ms: int) -> KnownJob:
    """Three hosts, the third is gone; the second has fewer ranks than the first."""
    nodes = (
        node("0", 0, "10.0.0.9"),
        node("1", 1, "10.0.0.9"),
        node("2", 2, "10.0.0.10"),
        node("3", 3, "10.0.0.11", lost_ms=lost_ms),
        node("standby_0", None, "10.0.0.11"),
    )
    return KnownJob(job="j", state="interrupted", nodes=nodes)


def test_the_host_with_the_fewest_ranks_begins_when_the_time_is_over() -> None:
    assert due(job(9_999), {"2"}, AFTER_MS) == ()
    assert due(job(10_000), {"2"}, AFTER_MS) == ((3, "3"),)


def test_the_next_host_waits_as_long_again() -> None:
    assert due(job(19_999), {"0", "1"}, AFTER_MS) == ()
    assert due(job(20_000), {"0", "1"}, AFTER_MS) == ((3, "3"),)


def test_a_host_whose_own_workers_are_gone_starts_nothing() -> None:
    assert due(job(10**9), {"3"}, AFTER_MS) == ()
    assert due(job(10**9), {"standby_0"}, AFTER_MS) == ()


def test_what_a_launcher_starts_again_itself_is_not_missing() -> None:
    nodes = (node("0", 0, "h"), node("1", 1, "h", lost_ms=10**6))
    lost = KnownJob(job="j", state="interrupted", nodes=nodes)
    assert due(lost, {"0", "1"}, AFTER_MS) == ()
    assert due(lost, {"0"}, AFTER_MS) == ((1, "1"),)


def test_what_is_started_again_under_a_fresh_id_is_not_missing_either() -> None:
    nodes = (node("0", 0, "h"), node("1.2", 1, "h", lost_ms=10**6))
    assert due(KnownJob(job="j", state="interrupted", nodes=nodes), {"0", "1"}, AFTER_MS) == ()


def test_a_rank_that_was_taken_is_not_missing() -> None:
    nodes = (node("0", 0, "h"), node("1", None, "g", lost_ms=10**6), node("standby_0", 1, "h"))
    assert due(KnownJob(job="j", state="running", nodes=nodes), {"0"}, AFTER_MS) == ()
