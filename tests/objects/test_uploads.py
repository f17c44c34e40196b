"""Ranks of different speed send the same steps; older ones go, and what fails is tried again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery.errors import CheckpointWriteError
from recovery.objects import commits
from recovery.objects.commits import At
from recovery.objects.store import ObjectStore
from recovery.objects.upload_order import UploadOrder
from recovery.objects.uploads import Uploads
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


def test_ranks_that_hold_different_steps_send_the_same_one(here: ObjectStore) -> None:
    assert UploadOrder(here, "job-a", 1, 1).current(5) == At(1, 5)
    assert UploadOrder(here, "job-a", 1, 1).current(10) == At(1, 5)
    assert UploadOrder(here, "job-a", 1, 2).current(10) == At(2, 10), "all begin together in a generation"


def test_the_next_turn_begins_when_one_has_passed(here: ObjectStore) -> None:
    first, second = UploadOrder(here, "job-a", 1, 1), UploadOrder(here, "job-a", 1, 1)
    assert first.current(5) == second.current(10) == At(1, 5)
    second.pass_on()
    assert second.current(10) == At(1, 10)
    assert first.current(5) == At(1, 10)


def test_a_slow_rank_and_a_fast_one_commit_what_both_hold(
    uploads_of: Callable[..., Uploads], here: ObjectStore, tmp_path: Path
) -> None:
    fast, slow = uploads_of(lambda: here, again_s=0.05), uploads_of(lambda: here, again_s=0.05)
    for step in (5, 10, 15):
        fast.know(step, saved(tmp_path, 0, step))
        slow.know(step, saved(tmp_path, 1, step))
        fast.committed(step)
    slow.committed(15)
    assert fast.finish(60)
    assert slow.finish(60)
    assert commits.steps(here, "job-a", 1)[0] == At(1, 15)


def test_what_the_storage_has_or_gets_stays_on_the_disk(
    uploads_of: Callable[..., Uploads], here: ObjectStore, tmp_path: Path
) -> None:
    pinned: list[list[tuple[int, ...]]] = [[], []]
    ranks = [uploads_of(lambda: here, pin=said.append, again_s=0.05) for said in pinned]
    for rank, uploads in enumerate(ranks):
        for step in (5, 10):
            uploads.know(step, saved(tmp_path, rank, step))
    for step in (5, 10):
        for uploads in ranks:
            uploads.committed(step)
        assert all(uploads.finish(60) for uploads in ranks)
    for said in pinned:
        assert said[0] in ((5,), (5, 5))
        assert (5, 10) in said
        assert said[-1] == (10,)


def test_a_step_that_a_rank_has_lost_is_passed_on(
    uploads_of: Callable[..., Uploads], here: ObjectStore, tmp_path: Path
) -> None:
    assert UploadOrder(here, "job-a", 1, 1).current(5) == At(1, 5)
    ranks = [uploads_of(lambda: here, again_s=0.05), uploads_of(lambda: here, again_s=0.05)]
    for rank, uploads in enumerate(ranks):
        uploads.know(10, saved(tmp_path, rank, 10))
        uploads.committed(10)
    assert all(uploads.finish(60) for uploads in ranks)
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
    assert UploadOrder(here, "job-a", 1, 1).current(5) == At(1, 5)
    told: list[tuple[int, str]] = []
    uploads = uploads_of(opened, failed=lambda step, reason: told.append((step, reason)), again_s=0.05)
    uploads.know(5, saved(tmp_path, 1, 5))
    with caplog.at_level(logging.INFO):
        uploads.committed(5)
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


def test_what_is_skipped_is_said_with_the_reason(
    uploads_of: Callable[..., Uploads], here: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    works = threading.Event()

    def opened() -> ObjectStore:
        if not works.is_set():
            raise CheckpointWriteError(path=here.url, reason="no route to it")
        return here

    ranks = [uploads_of(opened, again_s=0.05), uploads_of(opened, again_s=0.05)]
    with caplog.at_level(logging.INFO):
        for step in (5, 10, 15):
            for rank, uploads in enumerate(ranks):
                uploads.know(step, saved(tmp_path, rank, step))
                uploads.committed(step)
        assert not any(uploads.finish(60) for uploads in ranks), "it fails for both by now"
        works.set()
        assert all(uploads.finish(60) or uploads.finish(60) for uploads in ranks)
    said = [line for line in caplog.messages if line.startswith("event=uploads_skipped")]
    assert len(said) == len(ranks)
    for line in said:
        assert "steps=5,10 instead=15" in line
        assert "no route to it" in line


def test_what_waited_for_so_long_that_it_is_forgotten_is_said_too(
    uploads_of: Callable[..., Uploads], here: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failed = threading.Event()

    def opened() -> ObjectStore:
        failed.set()
        raise CheckpointWriteError(path=here.url, reason="no route to it")

    uploads, path = uploads_of(opened, again_s=3_600), saved(tmp_path, 0, 1)
    for step in range(1, 130):
        uploads.know(step, path)
        uploads.committed(step)
        assert failed.wait(60)
    [line] = [line for line in caplog.messages if line.startswith("event=uploads_skipped")]
    assert f"steps={','.join(map(str, range(1, 65)))} instead=129 " in line


def test_an_upload_that_fails_is_told_once_a_step_however_often_it_is_tried(
    uploads_of: Callable[..., Uploads], here: ObjectStore, tmp_path: Path
) -> None:
    tried, told = threading.Semaphore(0), list[int]()

    def opened() -> ObjectStore:
        tried.release()
        raise CheckpointWriteError(path=here.url, reason="no route to it")

    uploads = uploads_of(opened, failed=lambda step, reason: told.append(step), again_s=0.01)
    for step in (5, 10):
        uploads.know(step, saved(tmp_path, 0, step))
        uploads.committed(step)
        while step not in told:
            assert tried.acquire(timeout=60)
        for _ in range(3):
            assert tried.acquire(timeout=60)
    assert told == [5, 10]


def test_a_damaged_file_is_never_sent(
    uploads_of: Callable[..., Uploads], here: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(tmp_path, 0, 5)
    path.write_bytes(b"stale")
    told: list[int] = []
    uploads = uploads_of(lambda: here, failed=lambda step, reason: told.append(step), again_s=0.05)
    uploads.know(5, path)
    uploads.committed(5)
    assert uploads.finish(60)
    assert "event=upload_left_out" in caplog.text
    assert told == [5]
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
    uploads.know(5, saved(tmp_path, 0, 5))
    uploads.committed(5)
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
        uploads.know(5, saved(tmp_path, 0, 5))
        uploads.committed(5)
        assert not uploads.finish(60)
        assert "lets an object be written over" in caplog.text
        assert commits.steps(direct, "job-a", 1) == ()
        proxy.clear()
        other = uploads_of(lambda: direct, again_s=0.05)
        other.know(5, saved(tmp_path, 1, 5))
        other.committed(5)
        assert other.finish(60)
        assert uploads.finish(60), "it is tried again"
    assert direct.creates_once()
    assert not [name for name in direct.names("") if name.startswith("probe-")], "what was tried is removed"
