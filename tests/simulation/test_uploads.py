"""Jobs whose ranks send their checkpoints to object storage: faults hold no upload up for ever, and what is there as a whole is of one history."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from recovery.core.held import HeldCheckpoint
from recovery.core.ids import Generation, RunId
from tests.simulation.files import Saved
from tests.simulation.run import run
from tests.simulation.shape import Spares, shape_of
from tests.simulation.uploads import Storage
from tests.simulation.world import World

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


def test_a_copy_of_a_part_is_the_same_part_and_one_of_another_history_is_not() -> None:
    held = HeldCheckpoint(
        run=RunId(1),
        generation=Generation(2),
        step=10,
        epoch=1,
        step_in_epoch=10,
        path="w0/10",
        digest="a",
        file_bytes=1,
    )
    saved = Saved(held=held, content=((1, 0, "h:1"), (2, 5, "h:2")), rank=1, job="job")
    storage = Storage(World(0, shape_of(0, (), workers=2, spares=STORES)))
    storage.take(saved)
    copy = msgspec.structs.replace(held, path="w2/10", digest="a at w2")
    storage.take(msgspec.structs.replace(saved, held=copy))
    with pytest.raises(AssertionError, match="I8: two parts of rank 1"):
        storage.take(msgspec.structs.replace(saved, content=((1, 0, "h:1"), (2, 5, "h:3"))))
