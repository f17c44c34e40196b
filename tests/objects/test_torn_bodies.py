"""Bodies that break in their middle, or stand still: nothing torn is believed, and no call waits for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.checkpoint import verify
from recovery.errors import (
    CheckpointDigestError,
    CheckpointError,
    CheckpointManifestError,
    CheckpointWriteError,
)
from recovery.objects import commits
from recovery.objects.store import PART_BYTES
from tests.checkpoint.conftest import Save
from tests.objects.body_proxy import Asked, BodyProxy, Fault
from tests.objects.conftest import client_of, opened_for_tests, sent

NAME = "train-1_7.ckpt"
AT = commits.At(1, 7)
CONTENT = bytes(range(256)) * 4096


def saved(tmp_path: Path, rank: int) -> Path:
    return Save(tmp_path / f"own-{rank}")(NAME, CONTENT, rank=rank)


def sends_file(asked: Asked) -> bool:
    return asked.is_file and asked.method == "PUT"


def gets_file(asked: Asked) -> bool:
    return asked.is_file and asked.method == "GET"


@pytest.mark.slow
def test_a_file_whose_upload_is_cut_in_its_middle_is_not_there(tmp_path: Path, s3_address: str) -> None:
    direct = opened_for_tests(s3_address, tmp_path)
    sent(direct, saved(tmp_path, 0))
    own = saved(tmp_path, 1)
    with BodyProxy(s3_address) as proxy:
        through = client_of(proxy.address, tmp_path)
        proxy.set(Fault.CUT, sends_file)
        with pytest.raises(CheckpointError):
            sent(through, own)
        assert proxy.met
        assert commits.steps(direct, "job-a", 1) == ()
        proxy.clear()
        commit = sent(through, own)
    assert commit is not None
    held = commits.download(direct, commit, 1, tmp_path / "back")
    assert Path(held.path).read_bytes() == CONTENT


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.SHORT])
def test_a_download_that_is_torn_in_its_middle_is_refused(
    tmp_path: Path, s3_address: str, fault: Fault
) -> None:
    direct = opened_for_tests(s3_address, tmp_path)
    sent(direct, saved(tmp_path, 0))
    commit = sent(direct, saved(tmp_path, 1))
    assert commit is not None
    with BodyProxy(s3_address) as proxy:
        through = client_of(proxy.address, tmp_path)
        proxy.set(fault, gets_file)
        refused = CheckpointDigestError if fault is Fault.SHORT else CheckpointManifestError
        with pytest.raises(refused):
            commits.download(through, commit, 1, tmp_path / "back")
        assert proxy.met
        assert list((tmp_path / "back").iterdir()) == []
        proxy.clear()
        held = commits.download(through, commit, 1, tmp_path / "back")
    assert verify.check(Path(held.path)).digest == commit.ranks[1].digest


def test_an_upload_that_stands_still_is_given_up(tmp_path: Path, s3_address: str) -> None:
    """A driver has no limit for a body that the other end does not take."""
    direct = opened_for_tests(s3_address, tmp_path)
    large = tmp_path / "large"
    large.write_bytes(bytes(PART_BYTES))
    with BodyProxy(s3_address) as proxy:
        proxy.set(Fault.HOLD, lambda asked: asked.method == "PUT")
        with pytest.raises(CheckpointWriteError, match=r"nothing moved for 0\.5 s"):
            client_of(proxy.address, tmp_path, moves_s=0.5).put("large", large)
        assert direct.names("") == ()


def test_a_question_that_is_not_answered_is_given_up(tmp_path: Path, s3_address: str) -> None:
    direct = opened_for_tests(s3_address, tmp_path)
    direct.create("one", b"there")
    with BodyProxy(s3_address) as proxy:
        proxy.set(Fault.HOLD, lambda asked: asked.method == "GET")
        asking = client_of(proxy.address, tmp_path, patience_s=1)
        # On a busy machine the first ones are given up before they have come there.
        while not proxy.met:
            with pytest.raises(CheckpointManifestError, match="no answer in time"):
                asking.read("one", bytes_max=10)


@pytest.mark.parametrize("times", [5, 50], ids=["one part", "several"])
def test_a_file_that_is_read_in_pieces_comes_back_as_it_was(
    tmp_path: Path, s3_address: str, times: int
) -> None:
    direct = opened_for_tests(s3_address, tmp_path)
    large = tmp_path / "large"
    large.write_bytes(CONTENT * times)
    with BodyProxy(s3_address) as proxy:
        client_of(proxy.address, tmp_path).put("large", large)
    assert b"".join(direct.pieces("large")) == large.read_bytes()
