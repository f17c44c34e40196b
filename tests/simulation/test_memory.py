"""Random faults with checkpoints in memory, and hosts that lose them: every promise holds, and memory is worth having."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.run import Outcome, run, total
from tests.simulation.test_copies import AMONG, PAIRS

FEW, MANY = range(6), range(24)
"""Seeds of the gate, and of `make test-all`."""


def kept(outcomes: list[Outcome]) -> Counter[str]:
    """Every promise was; what was reached."""
    failed = [outcome for outcome in outcomes if outcome.failure]
    assert not failed, "\n".join((*failed[0].log[-200:], f"seed {failed[0].seed}: {failed[0].failure}"))
    return total(outcomes, "seen")


def with_copies(seeds: range) -> list[Outcome]:
    """Hosts lose their disks, their memory, or both, and the scheduler its store."""
    return [run(seed, workers=3, kinds=AMONG, spares=PAIRS, memory=True) for seed in seeds]


def test_memory_breaks_no_promise_under_a_few_seeds() -> None:
    assert kept([run(seed, memory=True) for seed in FEW])["a step was saved in memory"]
    assert kept(with_copies(FEW))["a step was saved in memory"]


@pytest.mark.slow
def test_memory_that_comes_and_goes_breaks_no_promise() -> None:
    seen = kept([run(seed, memory=True) for seed in MANY])
    assert [
        what
        for what in (
            "a step was saved in memory",
            "a plan went to a step in memory",
            "a host lost its memory",
            "a plan gave up a step that was in memory",
            "a job finished",
        )
        if not seen[what]
    ] == []


@pytest.mark.slow
def test_memory_and_copies_break_no_promise_together() -> None:
    seen = kept(with_copies(MANY))
    assert [
        what
        for what in (
            "a plan went to a step in memory",
            "a host lost its memory",
            "a copy was made",
            "a plan's checkpoint was fetched",
            "a job finished",
        )
        if not seen[what]
    ] == []
