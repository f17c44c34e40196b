"""A step in object storage is committed once, by all ranks, and comes back as it was."""

from __future__ import annotations

import concurrent.futures
import threading
from pathlib import Path

import pytest

from recovery.checkpoint import verify
from recovery.errors import CheckpointDigestError, CheckpointManifestError, CheckpointWriteError
from recovery.objects import commits
from recovery.objects.store import ObjectStore
from tests.checkpoint.conftest import Save
from tests.objects.conftest import sent

NAME = "train-1_7.ckpt"
AT = commits.At(1, 7)


def saved(tmp_path: Path, rank: int, content: bytes = b"state") -> Path:
    return Save(tmp_path / f"own-{rank}-{content.decode()}")(NAME, content, rank=rank)


def committed(store: ObjectStore, tmp_path: Path) -> commits.Commit:
    sent(store, saved(tmp_path, 0))
    commit = sent(store, saved(tmp_path, 1))
    assert commit is not None
    return commit


def test_a_step_counts_when_every_rank_has_added_its_part(store: ObjectStore, tmp_path: Path) -> None:
    assert sent(store, saved(tmp_path, 0)) is None
    assert commits.steps(store, "job-a", 1) == ()
    assert commits.read_commit(store, "job-a", 1, AT) is None
    commit = sent(store, saved(tmp_path, 1))
    assert commits.steps(store, "job-a", 1) == (AT,)
    assert commits.read_commit(store, "job-a", 1, AT) == commit


def test_each_rank_gets_its_own_contribution_back(store: ObjectStore, tmp_path: Path) -> None:
    commit = committed(store, tmp_path)
    for rank in (0, 1):
        held = commits.download(store, commit, rank, tmp_path / f"back-{rank}")
        assert verify.check(Path(held.path)).digest == commit.ranks[rank].digest


def test_what_is_committed_stays_when_a_rank_comes_with_another_state(
    store: ObjectStore, tmp_path: Path
) -> None:
    commit = committed(store, tmp_path)
    with pytest.raises(CheckpointWriteError, match="was there first"):
        sent(store, saved(tmp_path, 1, b"other"))
    assert commits.read_commit(store, "job-a", 1, AT) == commit


def test_of_two_writers_of_one_contribution_at_once_one_wins_whole(
    store: ObjectStore, tmp_path: Path
) -> None:
    """As where a process that was given up for dead goes on beside the one that took its place."""
    sent(store, saved(tmp_path, 0))
    contents = [f"state of {writer}".encode() * 1000 for writer in range(4)]
    own = [Save(tmp_path / f"writer-{n}")(NAME, content, rank=1) for n, content in enumerate(contents)]
    together = threading.Barrier(len(own))

    def writes(path: Path) -> commits.Commit | None:
        together.wait(60)
        try:
            return sent(store, path)
        except CheckpointWriteError:
            return None

    with concurrent.futures.ThreadPoolExecutor(len(own)) as writers:
        done = list(writers.map(writes, own))
    [won] = [number for number, commit in enumerate(done) if commit is not None]
    commit = commits.read_commit(store, "job-a", 1, AT)
    assert commit == done[won]
    assert commit is not None
    held = commits.download(store, commit, 1, tmp_path / "back")
    assert Path(held.path).read_bytes() == contents[won]


def test_a_contribution_that_is_there_is_not_sent_again(store: ObjectStore, tmp_path: Path) -> None:
    first = saved(tmp_path, 0)
    sent(store, first)
    sent(store, first)
    assert len(store.names(f"job-a/run-1/steps/{AT.name}/files")) == 1


def test_a_file_damaged_in_the_storage_is_not_published(store: ObjectStore, tmp_path: Path) -> None:
    commit = committed(store, tmp_path)
    (tmp_path / "damaged").write_bytes(b"stale")
    store.put(f"{commit.ranks[1].prefix}/0", tmp_path / "damaged")
    with pytest.raises(CheckpointDigestError):
        commits.download(store, commit, 1, tmp_path / "back")
    assert list((tmp_path / "back").iterdir()) == []


def test_a_commit_object_that_is_torn_is_no_commit(store: ObjectStore) -> None:
    store.create(f"job-a/run-1/commits/{AT.name}.json", b'{"body": {}, "sha')
    with pytest.raises(CheckpointManifestError, match="cannot be read"):
        commits.read_commit(store, "job-a", 1, AT)
