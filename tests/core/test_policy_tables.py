from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.core.ids import Generation, NodeId, Rank, RunId
from recovery.core.messages import HeldCheckpoint
from recovery.core.phases import Phase, PhaseReport
from recovery.core.policy import backoff, ranks, rollback
from recovery.core.records import GenerationRecord
from recovery.core.rules import Rules
from tests.core.desk import checkpoint

RULES = Rules(worker_count=4)


# --- ranks --------------------------------------------------------------------------------------------------------------


def test_integer_ids_are_the_ranks() -> None:
    hosts = {NodeId("2"): "b", NodeId("0"): "c", NodeId("1"): "a"}
    assert ranks.assign(hosts) == {"0": 0, "1": 1, "2": 2}


def test_names_are_ranked_by_host_then_in_natural_order() -> None:
    hosts = {NodeId(f"worker_{number}"): "10.0.0.10" for number in (10, 2)}
    hosts[NodeId("worker_7")] = "10.0.0.9"
    assert ranks.assign(hosts) == {"worker_7": 0, "worker_2": 1, "worker_10": 2}


@given(
    st.dictionaries(
        st.text("ab0129_", min_size=1).map(NodeId), st.sampled_from(["h1", "h2", "h10"]), min_size=1
    )
)
def test_ranks_are_a_permutation_and_hosts_are_contiguous(hosts: dict[NodeId, str]) -> None:
    if all(ranks.is_integer(name) for name in hosts):
        return
    assigned = ranks.assign(hosts)
    assert sorted(assigned.values()) == list(range(len(hosts)))
    by_rank = [hosts[name] for name, _ in sorted(assigned.items(), key=lambda item: item[1])]
    assert len(list(itertools.groupby(by_rank))) == len(set(by_rank))


def test_local_places_count_within_each_host() -> None:
    places = ranks.local_ranks({Rank(0): "a", Rank(1): "b", Rank(2): "a"})
    assert places == {0: (0, 2), 2: (1, 2), 1: (0, 1)}


@pytest.mark.parametrize(
    ("node_id", "others", "part"),
    [
        ("4", [], "from 0 to 3"),
        ("1", ["worker_2"], "either all ids are integers"),
        ("worker_2", ["1"], "either all ids are integers"),
        ("01", ["1"], "same rank 1"),
        ("1", ["1", "2"], None),
        ("worker_1", ["worker_2"], None),
    ],
)
def test_ids_that_cannot_be_ranked_together_are_named(
    node_id: str, others: list[str], part: str | None
) -> None:
    fault = ranks.SlotNames(NodeId(other) for other in others).violation(NodeId(node_id), 4)
    assert (fault is None) if part is None else (fault is not None and part in fault)


# --- rollback -----------------------------------------------------------------------------------------------------------


def held(*steps: set[int]) -> dict[int, dict[Rank, HeldCheckpoint]]:
    """Of each rank these."""
    return rollback.by_step((Rank(rank), checkpoint(step)) for rank, of in enumerate(steps) for step in of)


@given(st.lists(st.sets(st.integers(1, 6)), min_size=1, max_size=4))
def test_common_steps_agree_with_a_dumb_search(steps: list[set[int]]) -> None:
    dumb = [step for step in range(1, 7) if all(step in of for of in steps)]
    assert rollback.common_steps(held(*steps), len(steps)) == dumb


def test_a_rolled_back_suffix_is_out_of_the_lineage() -> None:
    generations = [_generation(1, 0), _generation(2, 400)]
    kept = rollback.in_lineage(
        [checkpoint(500, generation=1), checkpoint(400, generation=1), checkpoint(500, generation=2)],
        generations,
    )
    assert [(one.step, one.generation) for one in kept] == [(400, 1), (500, 2)]
    # Another run's plans say nothing.
    assert rollback.in_lineage([checkpoint(500, generation=1, run=2)], generations)


def _generation(number: int, step: int) -> GenerationRecord:
    return GenerationRecord(
        run=RunId(1), generation=Generation(number), step=step, epoch=0, step_in_epoch=0, because=""
    )


# --- backoff ------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 1_000), st.floats(0, 1, exclude_max=True))
def test_dials_wait_between_half_and_the_whole_of_a_doubling_bound(attempt: int, jitter: float) -> None:
    full = min(RULES.backoff_ms_max, RULES.backoff_ms_min * 2 ** min(attempt, 16))
    assert full // 2 <= backoff.next_dial_ms(attempt, jitter, RULES) <= full
    assert RULES.heartbeat_ms_min <= backoff.next_heartbeat_ms(jitter, RULES) <= RULES.heartbeat_ms_max


@pytest.mark.parametrize(
    ("limit_ms", "lasting_ms", "is_soon"),
    [(None, 1_000, True), (None, 999, False), (0, 60_000, False)],
)
def test_a_long_phase_is_told_of_each_second_where_it_is_judged(
    limit_ms: int | None, lasting_ms: int, is_soon: bool
) -> None:
    rules = Rules(worker_count=2, step_timeout_ms=limit_ms)
    report = PhaseReport(phase=Phase.DATA, lasting_ms=lasting_ms)

    assert (backoff.next_heartbeat_ms(0.5, rules, report) == 1_000) is is_soon
    assert backoff.next_heartbeat_ms(0.5, rules) == 4_000
