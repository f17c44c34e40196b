"""Hosts that copy their checkpoints, lose their disks, and fetch slowly, in vain, or damaged files; and a job in which only a disk is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.simulation.disk_faults import KINDS
from tests.simulation.faults import Fault
from tests.simulation.run import run
from tests.simulation.shape import Spares

PAIRS = Spares(copies=1, hosts=2, shared_files=False, failing_fetches=0.1, identities=True)
RING = Spares(
    copies=2,
    hosts=3,
    shared_files=False,
    standbys=1,
    fresh_ids=True,
    identities=True,
    failing_fetches=0.05,
    fetch_ms=(1, 5_000),
)
SLOW = Spares(copies=1, hosts=3, shared_files=False, standbys=2, identities=True, fetch_ms=(100, 20_000))
FEW, MANY = (1, 2, 4, 13), range(40)
"""Seeds of the gate, and of `make test-all`."""

AMONG = (
    "kill",
    "cut",
    "vanish",
    "scheduler",
    "freeze scheduler",
    "freeze",
    "rot",
    "remove",
    "spoil",
    "host",
)

WORTH_REACHING = (
    *(f"fault: {kind}" for kind in KINDS),
    "a copy failed",
    "a copy was let go",
    "a copy was made",
    "a damaged contribution was refused on arrival",
    "a fetch was cut",
    "a holder's copy was known to be damaged",
    "a plan named a holder",
    "a plan's checkpoint was fetched",
    "nobody gave what a plan needed",
    "what was to be fetched was there",
)


def kept(seeds: Iterable[int]) -> tuple[Counter[str], Counter[str]]:
    """Run the seeds; what they reached, and what was checked."""
    seen: Counter[str] = Counter()
    checked: Counter[str] = Counter()
    for spares in (PAIRS, RING, SLOW):
        for seed in seeds:
            outcome = run(seed, workers=3, kinds=AMONG, spares=spares)
            assert not outcome.failure, "\n".join((*outcome.log, f"seed {seed}", outcome.failure))
            seen.update(outcome.seen)
            checked.update(outcome.checked)
    return seen, checked


def test_copies_keep_every_promise_under_a_few_seeds() -> None:
    _, checked = kept(FEW)
    assert min(checked["I27"], checked["I28"], checked["I29"]) > 0


@pytest.mark.slow
def test_copies_keep_every_promise_in_the_middle_of_everything_else() -> None:
    seen, checked = kept(MANY)
    assert [name for name in WORTH_REACHING if not seen[name]] == []
    assert min(checked["I27"], checked["I28"], checked["I29"]) > 0


@pytest.mark.parametrize("spares", [PAIRS, RING], ids=["pairs", "ring"])
def test_one_lost_disk_costs_a_job_that_copies_no_end(spares: Spares) -> None:
    fetched = 0
    for seed in range(20):
        calm = run(seed, workers=3, faults=[Fault(30_000, "lost disk", seed)], spares=spares)
        assert not calm.failure, "\n".join((*calm.log, calm.failure))
        fetched += calm.seen.get("a plan's checkpoint was fetched", 0)
        ended = calm.seen.get("a job ended for want of a common checkpoint", 0)
        # Copies are let go once two steps are copied as a whole.
        assert not ended or not calm.seen.get("a copy was let go", 0), f"seed {seed}: {calm.log}"
    assert fetched > 3
