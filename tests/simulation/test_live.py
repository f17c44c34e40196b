"""Random faults with live rollback: every promise holds, and what survives a loss is gone on from."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.run import run, total
from tests.simulation.test_copies import AMONG, PAIRS

SEEDS, OF_SHARDS = range(40), range(90, 140)
"""Each set sees what is rare three times or more, so that another order of the draws loses none of it."""
ALWAYS = (
    "a plan went to a survivor's memory",
    "a state was taken from a survivor's memory",
    "a state in memory was torn",
    "a survivor finished the step in which another died",
    "a job finished",
)
DIFFERENT, SPOILED = "a rank took another state than the others", "a source could not give its state"
OF_ONE_RANK = ("a plan went to one rank's checkpoint", "a state was taken from one rank's checkpoint")
RARE = {
    "alone": (DIFFERENT, SPOILED, *OF_ONE_RANK),
    "memory": OF_ONE_RANK,
    "drains": (DIFFERENT, SPOILED),
    "copies": (DIFFERENT,),
    "shards": (
        DIFFERENT,
        SPOILED,
        "each part had a source of its own",
        "a part of a step was in no memory",
    ),
}
"""By what is beside it: what the seeds see a few times, so that it is demanded only where they do."""


@pytest.mark.faults
@pytest.mark.parametrize("beside", RARE)
def test_what_survives_in_memory_breaks_no_promise(beside: str) -> None:
    if beside == "copies":
        outcomes = [run(seed, workers=3, kinds=AMONG, spares=PAIRS, live=True) for seed in SEEDS]
    elif beside == "shards":
        outcomes = [run(seed, workers=4, live=True, shards=2) for seed in OF_SHARDS]
    else:
        outcomes = [
            run(seed, live=True, memory=beside == "memory", drains=beside == "drains") for seed in SEEDS
        ]
    failed = [outcome for outcome in outcomes if outcome.failure]
    assert not failed, "\n".join((*failed[0].log[-200:], f"seed {failed[0].seed}: {failed[0].failure}"))
    seen: Counter[str] = total(outcomes, "seen")
    assert [what for what in (*ALWAYS, *RARE[beside]) if not seen[what]] == []
