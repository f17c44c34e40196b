"""A limit of the process, or a disk that cannot be read, is said by its name: a store is neither damaged by it nor full."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from recovery.errors import RecoveryError
from recovery.store import connections
from recovery.store.reader import read_scheduler
from recovery.store.repository import SchedulerStore
from tests.store import samples

_SAID = {
    "SQLITE_READONLY": "attempt to write a readonly database",
    "SQLITE_CANTOPEN": "unable to open database file",
    "SQLITE_FULL": "database or disk is full",
}

SCRIPT = """
import os, resource, sys
from pathlib import Path
from recovery.errors import RecoveryError
from recovery.store.repository import SchedulerStore
from tests.store import samples

path, kind, limit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if kind == "size":
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
else:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for _ in range(limit):
        os.close(taken.pop())
try:
    store = SchedulerStore.open(path)
    for number in range(500):
        store.apply([samples.event("x" * 900)], wall_ms=number)
except RecoveryError as error:
    print(error.code, error)
"""


def under(path: Path, kind: str, limit: int) -> str:
    """What opening a store and writing to it says in a process with this limit."""
    line = [sys.executable, "-c", SCRIPT, str(path), kind, str(limit)]
    return subprocess.run(
        line, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2]
    ).stdout


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    store = SchedulerStore.open(tmp_path)
    store.apply([samples.job(1)], wall_ms=1)
    store.close()
    return tmp_path


@pytest.mark.parametrize("limit", [4_096, 30_000, 200_000])
def test_a_limit_of_a_file_s_size_is_no_damage_and_no_full_disk(stored: Path, limit: int) -> None:
    said = under(stored, "size", limit)
    assert said.startswith("STORE_REFUSED"), said
    assert "File too large: a file would be larger than this process may make one (ulimit -f)" in said
    assert "Raise that limit (`ulimit -f unlimited`)." in said
    assert read_scheduler(stored).job == samples.job(1)


@pytest.mark.parametrize("left", range(7))
def test_a_process_without_a_descriptor_left_calls_no_store_damaged(stored: Path, left: int) -> None:
    said = under(stored, "files", left)
    assert said.startswith(("STORE_REFUSED", "RECOVERY_PATH")), said
    assert "Too many open files: this process may open no more files (ulimit -n)" in said
    assert read_scheduler(stored).job == samples.job(1)


@pytest.mark.parametrize(
    ("number", "reading", "name", "code"),
    [
        (errno.EROFS, False, "SQLITE_READONLY", "STORE_REFUSED"),
        (errno.EROFS, True, "SQLITE_CANTOPEN", "STORE_REFUSED"),
        (errno.ENFILE, True, "SQLITE_CANTOPEN", "STORE_REFUSED"),
        (errno.EIO, True, "SQLITE_IOERR_READ", "STORE_REFUSED"),
        (errno.EIO, False, "SQLITE_IOERR_WRITE", "STORE_WRITE"),
        (errno.EFBIG, False, "SQLITE_IOERR_SHMSIZE", "STORE_REFUSED"),
        (errno.ENOSPC, False, "SQLITE_IOERR_SHMSIZE", "STORE_FULL"),
        (0, False, "SQLITE_FULL", "STORE_FULL"),
        (0, True, "SQLITE_IOERR_SHORT_READ", "STORE_CORRUPT"),
        (errno.EACCES, True, "SQLITE_CANTOPEN", "STORE_CORRUPT"),
    ],
)
def test_what_the_system_refuses_has_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reading: bool, name: str, code: str
) -> None:
    error = sqlite3.OperationalError(_SAID.get(name, "disk I/O error"))
    error.sqlite_errorname = name
    trial = tempfile.TemporaryFile

    def open_trial(**options: object) -> object:
        if number:
            raise OSError(number, os.strerror(number))
        return trial(**options)  # type: ignore[call-overload]  # what it was called with

    monkeypatch.setattr(tempfile, "TemporaryFile", open_trial)
    with pytest.raises(RecoveryError) as caught, connections.translated(tmp_path / "db", reading=reading):
        raise error
    assert caught.value.code == code
    if code == "STORE_REFUSED":
        assert os.strerror(number) in str(caught.value)


def test_a_limit_that_is_far_away_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 40, 1 << 40))
    with (
        pytest.raises(RecoveryError, match="STORE_WRITE"),
        connections.translated(tmp_path / "db", reading=False),
    ):
        raise sqlite3.OperationalError("disk I/O error")
