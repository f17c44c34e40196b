"""Random faults with checkpoints in memory, and hosts that lose them: every promise holds, and memory is worth having."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.run import run, total
from tests.simulation.test_copies import AMONG, PAIRS

SEEDS = range(24)


@pytest.mark.faults
def test_memory_that_comes_and_goes_breaks_no_promise() -> None:
    outcomes = [run(seed, memory=True) for seed in SEEDS]
    failed = [outcome for outcome in outcomes if outcome.failure]
    assert not failed, "\n".join((*failed[0].log[-200:], f"seed {failed[0].seed}: {failed[0].failure}"))
    seen: Counter[str] = total(outcomes, "seen")
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


@pytest.mark.faults
def test_memory_and_copies_break_no_promise_together() -> None:
    """Hosts lose their disks, their memory, or both, and the scheduler its store."""
    outcomes = [run(seed, workers=3, kinds=AMONG, spares=PAIRS, memory=True) for seed in SEEDS]
    failed = [outcome for outcome in outcomes if outcome.failure]
    assert not failed, "\n".join((*failed[0].log[-200:], f"seed {failed[0].seed}: {failed[0].failure}"))
    seen: Counter[str] = total(outcomes, "seen")
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
