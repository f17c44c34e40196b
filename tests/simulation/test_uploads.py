"""Jobs whose ranks send their checkpoints to object storage: faults hold no upload up for ever, and what is there as a whole is of one history."""

from __future__ import annotations

from collections import Counter

from tests.simulation.run import run
from tests.simulation.shape import Spares

STORES = Spares(stores=True, hosts=2, standbys=1, identities=True)
WORTH_REACHING = (
    "a part was gone",
    "a part was sent",
    "a step was sent by all ranks",
    "an upload failed",
    "an upload was overtaken",
)


def test_uploads_go_on_through_faults() -> None:
    seen: Counter[str] = Counter()
    for seed in range(12):
        outcome = run(seed, workers=3, spares=STORES)
        assert not outcome.failure, "\n".join((*outcome.log, f"seed {seed}", outcome.failure))
        seen.update(outcome.seen)
    assert [name for name in WORTH_REACHING if not seen[name]] == []


def test_one_step_follows_the_other_where_nothing_fails() -> None:
    # Jobs that last for longer than a few uploads.
    for seed in (2, 3):
        outcome = run(seed, workers=2, spares=STORES, faults=[])
        assert not outcome.failure
        assert outcome.seen["a step was sent by all ranks"] > 2, f"seed {seed}: {outcome.seen}"
        assert "a part was gone" not in outcome.seen
