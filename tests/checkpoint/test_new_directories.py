"""A checkpoint is only as durable as the directories above it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoint.conftest import Save


def test_every_new_directory_is_made_durable_in_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsynced: list[Path] = []
    fsync: Callable[[int], None] = os.fsync

    def recorded(descriptor: int) -> None:
        fsynced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)

    path = Save(tmp_path / "runs" / "today")()

    assert path.parent == tmp_path / "runs" / "today"
    assert fsynced[:2] == [tmp_path, tmp_path / "runs"]
