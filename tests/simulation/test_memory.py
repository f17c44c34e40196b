"""Random faults with checkpoints in memory, and hosts that lose them: every promise holds, and memory is worth having."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.run import run, total

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
