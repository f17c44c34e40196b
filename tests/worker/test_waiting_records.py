"""What waits for a store that does not open is bounded, and said where it is."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core.ids import Generation, RunId
from recovery.core.policy.history import KEPT, History
from recovery.core.records import DirectoryRecord, GenerationRecord
from recovery.core.tiers import MEMORY_DIRECTORY_PREFIX
from recovery.worker.waiting_records import WaitingRecords
from tests.store import samples

MOST = KEPT[History.OWN_SAVES]
PLANS = [
    GenerationRecord(
        run=RunId(1), generation=Generation(number), step=0, epoch=0, step_in_epoch=0, because="first"
    )
    for number in range(MOST + 5)
]
IN_MEMORY = msgspec.structs.replace(
    samples.checkpoint(), path=f"/dev/shm/{MEMORY_DIRECTORY_PREFIX}j/0/train-1_10.ckpt"
)


def test_only_the_newest_saves_and_plans_wait_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    waiting = WaitingRecords()
    waiting.keep(PLANS[:MOST])
    assert "event=history_not_kept" not in caplog.text
    waiting.keep(PLANS[MOST:])

    assert waiting.take() == tuple(PLANS[5:])
    assert caplog.text.count("event=history_not_kept") == 1
    assert not waiting
    assert waiting.take() == ()


def test_a_save_on_a_disk_is_not_driven_out_by_those_in_memory() -> None:
    waiting, on_disk = WaitingRecords(), samples.checkpoint(step=7)
    waiting.keep([on_disk, *(msgspec.structs.replace(IN_MEMORY, step=step) for step in range(10, 2 * MOST))])

    assert on_disk in waiting.take()


def test_of_one_key_the_newest_waits_and_none_that_goes_to_the_store_first() -> None:
    waiting = WaitingRecords()
    place = DirectoryRecord(path="/a", prefix="p", run=RunId(1))
    waiting.keep([samples.job(1), place, samples.job(2), samples.node()])
    assert waiting
    waiting.overtaken_by([samples.node(step=9), samples.checkpoint()])

    assert set(waiting.take()) == {samples.job(2), place}
