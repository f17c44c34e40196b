"""What is ordered is sent, and behind training the last step; older ones go, and what fails is tried again."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from recovery.checkpoint.verify import check
from recovery.errors import CheckpointWriteError
from recovery.objects import commits
from recovery.objects.commits import At
from recovery.objects.store import ObjectStore
from recovery.objects.uploads import Part, Uploads
from tests.checkpoint.conftest import Save
from tests.needs import needs_package
from tests.objects.body_proxy import BodyProxy, Fault
from tests.objects.conftest import client_of, opened_for_tests, sent


@pytest.fixture
def here(tmp_path: Path) -> ObjectStore:
    needs_package("fsspec")
    return ObjectStore(f"file://{tmp_path}/objects")


@pytest.fixture
def uploads_of() -> Iterator[Callable[..., Uploads]]:
    """Makes them, and ends their threads behind the test: one that tries for ever would open files under the tests that follow."""
    made: list[Uploads] = []

    def make(*args: Any, **options: Any) -> Uploads:
        made.append(Uploads(*args, **options))
        return made[-1]

    yield make
    for uploads in made:
        uploads.stop()
    for thread in threading.enumerate():
        if thread.name == "recovery-uploads":
            thread.join(60)
            assert not thread.is_alive(), "it still tries to send"


def saved(tmp_path: Path, rank: int, step: int, generation: int = 1) -> Path:
    directory = tmp_path / f"own-{rank}-{generation}"
    return Save(directory)(f"train-1_{step}.ckpt", b"state", rank=rank, step=step, generation=generation)


def upload(store: ObjectStore, tmp_path: Path, step: int, generation: int = 1) -> None:
    for rank in (0, 1):
        sent(store, saved(tmp_path, rank, step, generation))


def ordered(uploads: Uploads, tmp_path: Path, rank: int, step: int) -> None:
    """The step is committed, and its turn has come."""
    part = part_of(saved(tmp_path, rank, step))
    uploads.know(part)
    uploads.committed(step)
    uploads.order(part)


def until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < give_up, "it does not come"
        time.sleep(0.01)


def part_of(path: Path) -> Part:
    manifest = check(path)
    return Part(manifest.step, path, manifest.digest)


def test_what_is_ordered_is_sent_and_reported_and_what_is_committed_behind_it_waits(
    uploads_of: Callable[..., Uploads], here: ObjectStore, tmp_path: Path
) -> None:
    reported: queue.Queue[tuple[int, bool]] = queue.Queue()
    ranks = [
        uploads_of(lambda: here, over=lambda part, there: reported.put((part.step, there)), again_s=0.05)
        for _ in (0, 1)
    ]
    for rank, uploads in enumerate(ranks):
        ordered(uploads, tmp_path, rank, 5)
        assert reported.get(timeout=60) == (5, True), "its own part is there, whatever the other rank does"
        part = part_of(saved(tmp_path, rank, 10))
        uploads.know(part)
        uploads.committed(10)
        assert uploads.unsent == part
    until(lambda: commits.steps(here, "job-a", 1) == (At(1, 5),))
    for uploads in ranks:
        uploads.end_training()
    assert all(uploads.finish(60) for uploads in ranks), (
        "behind training the last one is sent without an order"
    )
    assert commits.steps(here, "job-a", 1)[0] == At(1, 10)
    assert reported.empty()


def test_what_was_sent_is_reported_again_when_it_is_ordered_again(
    uploads_of: Callable[..., Uploads], here: ObjectStore, tmp_path: Path
) -> None:
    """A scheduler that was started again does not know."""
    reported: queue.Queue[tuple[int, bool]] = queue.Queue()
    uploads = uploads_of(
        lambda: here, over=lambda part, there: reported.put((part.step, there)), again_s=0.05
    )
    ordered(uploads, tmp_path, 0, 5)
    assert reported.get(timeout=60) == (5, True)
    sent(here, saved(tmp_path, 1, 5))
    until(lambda: uploads.unsent is None)
    uploads.order(part_of(saved(tmp_path, 0, 5)))
    assert reported.get(timeout=60) == (5, True)
    assert uploads.unsent is None


def test_what_the_storage_has_or_gets_stays_on_the_disk(
    uploads_of: Callable[..., Uploads], here: ObjectStore, tmp_path: Path
) -> None:
    pinned: list[list[tuple[int, ...]]] = [[], []]
    ranks = [uploads_of(lambda: here, pin=said.append, again_s=0.05) for said in pinned]
    for step in (5, 10):
        for rank, uploads in enumerate(ranks):
            ordered(uploads, tmp_path, rank, step)
        until(lambda: all(uploads.unsent is None for uploads in ranks))
    for said in pinned:
        assert said == [(5,), (5,), (10, 5), (5, 10)]


def test_another_step_that_is_ordered_takes_the_place_of_one_that_is_not_whole(
    uploads_of: Callable[..., Uploads], here: ObjectStore, tmp_path: Path
) -> None:
    told: list[int] = []
    first = uploads_of(lambda: here, again_s=3_600, over=lambda part, is_there: told.append(part.step))
    for step in (5, 10):
        ordered(first, tmp_path, 0, step)
        until(partial(told.__contains__, step))
    first.order(part_of(saved(tmp_path, 0, 10)))
    second = uploads_of(lambda: here, again_s=3_600)
    # Its part is the last one.
    ordered(second, tmp_path, 1, 10)
    until(lambda: second.unsent is None)
    assert commits.steps(here, "job-a", 1) == (At(1, 10),)


def test_storage_that_fails_is_tried_again(
    uploads_of: Callable[..., Uploads], here: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failed = threading.Event()

    def opened() -> ObjectStore:
        if not failed.is_set():
            failed.set()
            raise CheckpointWriteError(path=here.url, reason="no route to it")
        return here

    sent(here, saved(tmp_path, 0, 5))
    told: list[tuple[int, str]] = []
    uploads = uploads_of(opened, failed=lambda step, reason: told.append((step, reason)), again_s=0.05)
    with caplog.at_level(logging.INFO):
        ordered(uploads, tmp_path, 1, 5)
        assert failed.wait(60)
        assert uploads.finish(60) or uploads.finish(60)
    [(step, reason)] = told
    assert step == 5
    assert reason == (
        f"CHECKPOINT_WRITE: {here.url} was not saved (no route to it). "
        "Check MS_CHECKPOINT_STORE, the driver's credentials and endpoint, and the way there."
    )
    assert f"event=upload_failed training goes on, and it is tried again: {reason}" in caplog.text
    assert "event=checkpoint_uploaded step=5" in caplog.text


def test_an_upload_that_fails_is_told_once_a_step_however_often_it_is_tried(
    uploads_of: Callable[..., Uploads], here: ObjectStore, tmp_path: Path
) -> None:
    tried, told = threading.Semaphore(0), list[int]()

    def opened() -> ObjectStore:
        tried.release()
        raise CheckpointWriteError(path=here.url, reason="no route to it")

    uploads = uploads_of(opened, failed=lambda step, reason: told.append(step), again_s=0.01)
    for step in (5, 10):
        ordered(uploads, tmp_path, 0, step)
        while step not in told:
            assert tried.acquire(timeout=60)
        for _ in range(3):
            assert tried.acquire(timeout=60)
    assert told == [5, 10]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"stale"),
        lambda path: path.unlink(),
        lambda path: Save(path.parent)(path.name, b"trained again", rank=0, step=5, generation=2),
    ],
    ids=["damaged", "gone", "another"],
)
def test_a_file_that_is_not_what_was_saved_is_never_sent(
    uploads_of: Callable[..., Uploads],
    here: ObjectStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], object],
) -> None:
    told, reported = list[int](), list[tuple[int, bool]]()
    uploads = uploads_of(
        lambda: here,
        failed=lambda step, reason: told.append(step),
        over=lambda part, there: reported.append((part.step, there)),
        again_s=0.05,
    )
    part = part_of(saved(tmp_path, 0, 5))
    spoil(part.path)
    uploads.know(part)
    uploads.committed(5)
    uploads.order(part)
    assert not uploads.finish(60), "where it is the last step, the storage does not have what was trained"
    assert uploads.trouble
    assert caplog.text.count("event=upload_left_out") == 1
    assert told == [5]
    until(lambda: reported == [(5, False)])
    assert not (tmp_path / "objects").exists()


def test_the_newest_committed_steps_stay(here: ObjectStore, tmp_path: Path) -> None:
    for step in (5, 10, 15, 20):
        upload(here, tmp_path, step)
    sent(here, saved(tmp_path, 0, 7))
    assert commits.retain(here, "job-a", 1) == (At(1, 5),)
    assert [at.step for at in commits.steps(here, "job-a", 1)] == [20, 15, 10]
    assert here.read(f"job-a/run-1/steps/{At(1, 5).name}/rank-0.json", bytes_max=1) is None
    assert here.read(f"job-a/run-1/steps/{At(1, 7).name}/rank-0.json", bytes_max=1) is None, "never committed"
    for at in commits.steps(here, "job-a", 1):
        commit = commits.read_commit(here, "job-a", 1, at)
        assert commit is not None
        commits.download(here, commit, 1, tmp_path / f"back-{at.step}")


def test_what_was_rolled_back_is_older_than_what_came_after(here: ObjectStore, tmp_path: Path) -> None:
    upload(here, tmp_path, 40)
    upload(here, tmp_path, 30, generation=2)
    assert commits.steps(here, "job-a", 1)[0] == At(2, 30)


def test_the_end_of_the_process_does_not_wait_for_storage_that_fails(
    uploads_of: Callable[..., Uploads], tmp_path: Path
) -> None:
    def opened() -> ObjectStore:
        raise CheckpointWriteError(path="s3://bucket", reason="no route to it")

    uploads = uploads_of(opened, again_s=0.05)
    ordered(uploads, tmp_path, 0, 5)
    ended: list[bool] = []
    # Not for the hour that it would have.
    ends = threading.Thread(target=lambda: ended.append(uploads.finish(3_600)), daemon=True)
    ends.start()
    ends.join(60)
    assert ended == [False]


def test_a_storage_that_does_not_keep_what_was_created_first_gets_no_checkpoint(
    uploads_of: Callable[..., Uploads], tmp_path: Path, s3_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Some servers (`rclone serve s3` for one) ignore the condition of a write: two ranks could commit a step each."""
    direct = opened_for_tests(s3_address, tmp_path)
    with BodyProxy(s3_address) as proxy, caplog.at_level(logging.WARNING):
        proxy.set(Fault.UNCONDITIONAL, lambda asked: asked.method == "PUT")
        through = client_of(proxy.address, tmp_path)
        assert not through.creates_once()
        uploads = uploads_of(lambda: through, again_s=0.05)
        ordered(uploads, tmp_path, 0, 5)
        assert not uploads.finish(60)
        assert "lets an object be written over" in caplog.text
        assert commits.steps(direct, "job-a", 1) == ()
        proxy.clear()
        other = uploads_of(lambda: direct, again_s=0.05)
        ordered(other, tmp_path, 1, 5)
        assert other.finish(60)
        assert uploads.finish(60), "it is tried again"
    assert direct.creates_once()
    assert not [name for name in direct.names("") if name.startswith("probe-")], "what was tried is removed"


def test_what_fails_of_a_step_that_was_overtaken_does_not_end_the_wait_for_the_last(
    uploads_of: Callable[..., Uploads], here: ObjectStore, tmp_path: Path
) -> None:
    asked = threading.Event()

    def opened() -> ObjectStore:
        if asked.is_set():
            return here
        asked.set()
        # It is waited for.
        until(lambda: uploads._training_is_over)
        raise CheckpointWriteError(path=here.url, reason="cut")

    sent(here, saved(tmp_path, 1, 10))
    uploads = uploads_of(opened, again_s=3_600)
    ordered(uploads, tmp_path, 0, 5)
    assert asked.wait(60)
    last = part_of(saved(tmp_path, 0, 10))
    uploads.know(last)
    uploads.committed(10)
    assert uploads.finish(60)
    assert commits.steps(here, "job-a", 1) == (At(1, 10),)
