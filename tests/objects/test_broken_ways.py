"""Whatever breaks at whichever request: nobody believes what is half done, and the next attempt ends it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from recovery.checkpoint import names, verify
from recovery.errors import CheckpointError
from recovery.objects import commits
from recovery.objects.store import ObjectStore
from tests.checkpoint.conftest import Save
from tests.objects.conftest import client_of, opened_for_tests, sent
from tests.objects.cutting_proxy import Break, CuttingProxy

NAME = "train-1_7.ckpt"
AT = commits.At(1, 7)
REQUESTS_MAX = 40
"""More than one upload or download makes."""


def impatient(address: str, place: Path) -> ObjectStore:
    """A client that asks once: each of its requests may be the last one."""
    made = client_of(address, place, config_kwargs={"retries": {"total_max_attempts": 1}})
    made._files.retries = 1
    return made


def saved(tmp_path: Path, rank: int, run: int = 1) -> Path:
    return Save(tmp_path / f"own-{rank}-{run}")(NAME, f"state of {rank}".encode(), rank=rank, run=run)


@pytest.mark.slow
@pytest.mark.parametrize("how", [Break.ERROR, Break.NOT_ANSWERED])
def test_an_upload_that_ends_anywhere_leaves_a_whole_step_or_none(
    tmp_path: Path, s3_address: str, how: Break
) -> None:
    place, broken = tmp_path / f"place-{how.name}", 0
    direct = opened_for_tests(s3_address, place)
    for at in range(1, REQUESTS_MAX):
        own = [saved(tmp_path, rank, run=at) for rank in (0, 1)]
        sent(direct, own[0])
        with CuttingProxy(s3_address, how, at) as proxy:
            try:
                done = sent(impatient(proxy.address, place), own[1])
            except CheckpointError:
                done = None
            if not proxy.has_broken:
                assert done is not None
                break
        broken += 1
        seen = commits.read_commit(direct, "job-a", at, AT)
        if seen is not None:
            check_whole(direct, seen, tmp_path / f"back-{at}")
        assert sent(direct, own[1]) is not None, "the next attempt ends it"
    assert broken >= 5, "it was cut at each of its requests"


def check_whole(store: ObjectStore, commit: commits.Commit, directory: Path) -> None:
    for rank in (0, 1):
        held = commits.download(store, commit, rank, directory / str(rank))
        assert Path(held.path).read_bytes() == f"state of {rank}".encode()


@pytest.mark.slow
@pytest.mark.parametrize("how", [Break.NOT_SENT])
def test_a_download_that_ends_anywhere_publishes_all_or_nothing(
    tmp_path: Path, s3_address: str, how: Break
) -> None:
    place = tmp_path / f"place-{how.name}"
    direct = opened_for_tests(s3_address, place)
    sent(direct, saved(tmp_path, 0))
    commit = sent(direct, saved(tmp_path, 1))
    assert commit is not None
    for at in itertools.count(1):
        back = tmp_path / f"back-{at}"
        with CuttingProxy(s3_address, how, at) as proxy:
            try:
                held = commits.download(impatient(proxy.address, place), commit, 1, back)
            except CheckpointError:
                there = list(back.iterdir()) if back.exists() else []
                assert [one for one in there if names.parse(one.name) is not None] == []
                assert there == []
                continue
            assert verify.check(Path(held.path)).digest == commit.ranks[1].digest
            if not proxy.has_broken:
                break
    assert at > 2, "it was cut at each of its requests"
