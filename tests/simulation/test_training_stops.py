"""Scripts that end training early, under random faults, beside departures, and with what survives in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
import pytest

from tests.simulation.run import run
from tests.simulation.shape import Spares, losses_of
from tests.simulation.test_drains import SPARES as WITH_DRAINS

SPARES = Spares(hosts=2, identities=True, exits_seen=0.5, training_stops=True)
BESIDE = msgspec.structs.replace(WITH_DRAINS, job_stops=True, training_stops=True)
FEW, MANY = range(6), range(100)
"""Seeds of the gate, and of `make test-all`."""
_AMONG = ("kill", "cut", "vanish", "scheduler", "freeze scheduler", "freeze", "rot", "disk full")

WORTH_REACHING = (
    "a script asked for the end of training",
    "a script ended training",
)


def kept(seeds: Iterable[int]) -> Counter[str]:
    """Run the seeds; what they reached."""
    seen: Counter[str] = Counter()
    for spares in (SPARES, BESIDE):
        for live in (False, True):
            for seed in seeds:
                if losses_of(seed):
                    continue
                outcome = run(seed, workers=3, kinds=_AMONG, spares=spares, live=live)
                assert not outcome.failure, "\n".join((*outcome.log, f"seed {seed}", outcome.failure))
                seen.update(outcome.seen)
    return seen


def test_the_end_that_scripts_ask_for_keeps_every_promise_under_a_few_seeds() -> None:
    assert kept(FEW)["a script ended training"] > 0


@pytest.mark.slow
def test_the_end_that_scripts_ask_for_keeps_every_promise_in_the_middle_of_everything_else() -> None:
    seen = kept(MANY)
    assert [name for name in WORTH_REACHING if not seen[name]] == []


@pytest.mark.parametrize("seed", [910003, 910007])
def test_a_store_that_is_lost_behind_the_stop_keeps_every_other_promise(seed: int) -> None:
    """They once broke I32: the next store knows of no end of training, and the scripts end it at a later step."""
    assert losses_of(seed)
    outcome = run(seed, workers=3, spares=BESIDE)
    assert not outcome.failure, "\n".join((*outcome.log, f"seed {seed}", outcome.failure))
