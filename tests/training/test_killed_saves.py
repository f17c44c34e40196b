"""A process that begins to save clears up what the killed one before it has left half-written, unless recovery is off."""

from __future__ import annotations

from pathlib import Path

import pytest

import recovery
from tests.training.test_save_out_of_turn import OneRank


@pytest.mark.parametrize("recovery_enabled", [True, False])
def test_what_a_killed_save_has_left_goes_when_the_next_process_begins(
    tmp_path: Path, recovery_enabled: bool
) -> None:
    left = tmp_path / ".t-1_5.ckpt.4194305-0123456789abcdef.tmp"
    left.write_bytes(b"half")
    rank = OneRank()
    rank.recovery_enabled = recovery_enabled
    rank.train(recovery.ModelCheckpoint("t", tmp_path), 1, asked_at=())
    assert left.exists() is not recovery_enabled
    assert (tmp_path / "t-1_1.ckpt").exists()
