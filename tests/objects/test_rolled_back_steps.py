"""Steps in object storage that a plan has rolled back are brought to nobody, keep no older step from it, and count for nothing that is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.core.ids import Generation, Rank, RunId
from recovery.core.messages import GenerationStart
from recovery.core.policy.rollback import in_lineage
from recovery.core.records import GenerationRecord
from recovery.objects import commits
from recovery.objects.commits import At
from recovery.objects.store import ObjectStore
from recovery.worker.held_copies import Copies
from recovery.worker.object_storage import ObjectStorage
from tests.checkpoint.conftest import Save
from tests.needs import needs_package
from tests.objects.conftest import sent

BEGAN = {1: 0, 2: 110}
"""By generation the step where it began: 120 was rolled back to 110."""


@pytest.fixture
def there(tmp_path: Path) -> ObjectStore:
    needs_package("fsspec")
    store = ObjectStore(f"file://{tmp_path}/objects")
    for step in (100, 110, 120):
        send(store, tmp_path, step)
    return store


def send(store: ObjectStore, tmp_path: Path, step: int, generation: int = 1) -> None:
    """Both ranks send their parts."""
    for rank in (0, 1):
        save = Save(tmp_path / f"own-{rank}-{generation}")
        sent(store, save(f"train-1_{step}.ckpt", b"state", rank=rank, step=step, generation=generation))


def starts(began: dict[int, int]) -> list[GenerationStart]:
    return [
        GenerationStart(generation=Generation(number), step=step, epoch=1, step_in_epoch=step)
        for number, step in began.items()
    ]


def storage_of(
    store: ObjectStore, tmp_path: Path, pin: Callable[[tuple[int, ...]], None] = lambda steps: None
) -> ObjectStorage:
    copies = Copies(tmp_path / "lost", "0")
    return ObjectStorage(
        store.url, copies, lambda: True, pin, lambda step, reason: None, lambda part, is_there: None
    )


def plans(began: dict[int, int]) -> list[GenerationRecord]:
    return [
        GenerationRecord(
            run=RunId(1), generation=Generation(number), step=step, epoch=1, step_in_epoch=step, because=""
        )
        for number, step in began.items()
    ]


@pytest.mark.parametrize(
    ("began", "step"), [({}, 120), ({1: 0}, 120), (BEGAN, 110), ({**BEGAN, 3: 105}, 100), ({2: 50}, 0)]
)
def test_newest_step_that_no_plan_has_rolled_back_is_brought(
    there: ObjectStore, tmp_path: Path, began: dict[int, int], step: int
) -> None:
    pinned: list[tuple[int, ...]] = []
    storage = storage_of(there, tmp_path, pinned.append)

    brought = storage.bring("job-a", RunId(1), Rank(0), (), starts(began))

    assert [held.step for held in brought] == ([step] if step else [])
    assert in_lineage(brought, plans(began)) == brought, "the plan can go there"
    # Whoever has its disk holds the step with which the others come back.
    assert pinned == [(step,) if step else ()]


def test_plan_that_this_process_was_given_counts_too(there: ObjectStore, tmp_path: Path) -> None:
    storage = storage_of(there, tmp_path)
    storage.note_saved(plans(BEGAN))

    brought = storage.bring("job-a", RunId(1), Rank(0), ())

    assert [held.step for held in brought] == [110]


def test_step_that_stays_on_a_disk_follows_the_plan_though_the_storage_does_not_answer(
    there: ObjectStore, tmp_path: Path
) -> None:
    """Ranks that go on with their disks keep what one that has lost its disk comes back with."""
    pinned: list[tuple[int, ...]] = []
    storage = storage_of(there, tmp_path, pinned.append)
    storage.bring("job-a", RunId(1), Rank(0), (), starts({1: 0}))
    assert pinned[-1] == (120,)
    storage.note_saved(plans(BEGAN))
    assert pinned[-1] == (110,)


def test_step_that_is_trained_again_is_brought_of_the_later_generation(
    there: ObjectStore, tmp_path: Path
) -> None:
    send(there, tmp_path, 120, generation=2)

    [brought] = storage_of(there, tmp_path).bring("job-a", RunId(1), Rank(0), (), starts(BEGAN))

    assert (brought.step, brought.generation) == (120, 2)


def test_rolled_back_steps_take_no_place_of_those_that_are_kept(there: ObjectStore, tmp_path: Path) -> None:
    storage = storage_of(there, tmp_path)
    storage.note_saved(plans({1: 0, 2: 100}))

    def retain() -> list[At]:
        commits.retain(there, "job-a", 1, lambda at: storage._leads_here(1, at))
        return list(commits.steps(there, "job-a", 1))

    send(there, tmp_path, 110, generation=2)
    assert retain() == [At(2, 110), At(1, 120), At(1, 110), At(1, 100)]
    send(there, tmp_path, 120, generation=2)
    assert retain()[-1] == At(1, 100)
    send(there, tmp_path, 130, generation=2)
    assert retain() == [At(2, 130), At(2, 120), At(2, 110)]
