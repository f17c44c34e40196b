"""The token's file: whole, one for all who come at once, and refused where others could know or choose it."""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recovery.config.secret import Secret
from recovery.errors import RecoveryPathError
from recovery.store import job_token_file
from recovery.store.job_token_file import NAME, shared, source_of, stored, token_of


def test_whoever_comes_first_makes_it_and_all_others_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "recovery"
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(lambda _: shared(path), range(64)))
    assert len(found) == 1
    assert [len(token) for token in found] == [64]
    assert stat.S_IMODE((path / NAME).stat().st_mode) == 0o600
    assert [one.name for one in path.iterdir()] == [NAME], "nothing else is left there"
    assert stored(path) in found


def test_who_comes_second_takes_what_the_first_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, looks = shared(tmp_path), [0]

    def not_there_yet(path: Path) -> str | None:
        looks[0] += 1
        return None if looks[0] == 1 else stored(path)

    monkeypatch.setattr(job_token_file, "stored", not_there_yet)

    assert shared(tmp_path) == token


def test_two_paths_have_two_tokens(tmp_path: Path) -> None:
    assert shared(tmp_path / "a") != shared(tmp_path / "b")


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("readable", "others may read or write it"),
        ("link", "cannot be opened"),
        ("directory", "not a regular file"),
        ("pipe", "not a regular file"),
        ("empty", "holds no token"),
        ("short", "holds no token"),
        ("binary", "holds no token"),
    ],
)
def test_what_others_could_know_or_choose_is_refused(tmp_path: Path, what: str, why: str) -> None:
    file = tmp_path / NAME
    if what == "link":
        (tmp_path / "elsewhere").write_text("a" * 64)
        file.symlink_to(tmp_path / "elsewhere")
    elif what == "directory":
        file.mkdir(0o700)
    elif what == "pipe":
        os.mkfifo(file, 0o600)
    else:
        file.write_bytes({"readable": b"a" * 64, "empty": b"", "short": b"abc", "binary": bytes(64)}[what])
        file.chmod(0o644 if what == "readable" else 0o600)
    with pytest.raises(RecoveryPathError, match=why):
        shared(tmp_path)


def test_where_nobody_may_write_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecoveryPathError):
        shared(tmp_path / "file")


def test_what_is_set_counts_before_the_file_and_off_means_none(tmp_path: Path) -> None:
    assert token_of(Secret("a-token-of-this-test"), tmp_path) == "a-token-of-this-test"
    assert token_of(Secret("off"), tmp_path) is None
    assert token_of(None, None) is None
    assert list(tmp_path.iterdir()) == []
    assert token_of(None, tmp_path) == stored(tmp_path)


def test_another_users_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared(tmp_path)
    if os.geteuid() == 0:
        os.chown(tmp_path / NAME, 4_711, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)

    with pytest.raises(RecoveryPathError, match="it belongs to user "):
        stored(tmp_path)


def test_a_disk_that_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared(tmp_path)

    def failing(descriptor: int, size: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "read", failing)
    with pytest.raises(RecoveryPathError, match=r"cannot be read .*Input/output error"):
        stored(tmp_path)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EPERM, r"has no hard links\. .* in MS_JOB_TOKEN"),
        (errno.EIO, r"cannot be used \(Input/output error"),
    ],
)
def test_a_file_system_without_links_has_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    def refuse(*names: object, **how: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)

    with pytest.raises(RecoveryPathError, match=said):
        shared(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nor_has_one_without_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open
    monkeypatch.setattr(os, "open", lambda name, flags, mode=0, **how: opened(name, flags, 0o755, **how))

    with pytest.raises(RecoveryPathError, match=r"keeps no modes: .* has 0755\. .* in MS_JOB_TOKEN"):
        shared(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_token_that_is_removed_at_once_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_token_file, "stored", lambda path: None)

    with pytest.raises(RecoveryPathError, match="removed at once"):
        shared(tmp_path)


def test_only_what_lies_in_a_file_is_read_again(tmp_path: Path) -> None:
    assert source_of(Secret("a-token-of-this-test"), tmp_path) is None
    assert source_of(None, None) is None
    again = source_of(None, tmp_path)
    assert again is not None
    assert again() is None
    assert shared(tmp_path) == again()
