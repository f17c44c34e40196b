"""A save says what all ranks must have alike, as it was at its step, if there are others and nobody has turned it off."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from typing_extensions import override

import recovery
from recovery.checkpoint import catalogue
from recovery.core.held import HeldCheckpoint
from recovery.core.policy.replica_difference import joint_digest
from tests.cluster.small_job import Tally
from tests.training.test_save_out_of_turn import OneRank


class Alike(Tally):
    """A state that all ranks have."""

    def __init__(self, rank: OneRank) -> None:
        super().__init__()
        self._rank = rank

    def replica(self) -> dict[str, str]:
        return {"weight": f"step {self._rank.step}"}


class Rank(OneRank):
    def __init__(self, world_size: int, *, compares: bool) -> None:
        super().__init__()
        self.world_size, self.compares_replicas = world_size, compares
        self.state = Alike(self)
        self.told: dict[int, dict[str, str]] = {}
        self.digests: dict[int, str] = {}

    @override
    def checkpoint_published(self, checkpoint: HeldCheckpoint, replica: Mapping[str, str] = {}) -> None:
        self.told[checkpoint.step] = dict(replica)
        self.digests[checkpoint.step] = checkpoint.replica


@pytest.mark.parametrize("async_save", [False, True])
@pytest.mark.parametrize(("world_size", "compares"), [(2, True), (1, True), (2, False)])
def test_what_all_ranks_must_have_alike_is_told_with_each_save(
    tmp_path: Path, world_size: int, compares: bool, async_save: bool
) -> None:
    config = recovery.CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=9, async_save=async_save)
    rank = Rank(world_size, compares=compares)
    rank.train(recovery.ModelCheckpoint("t", tmp_path, config), 4, asked_at=(3,))
    is_told = compares and world_size > 1
    assert rank.told == {step: {"weight": f"step {step}"} if is_told else {} for step in (2, 3, 4)}
    # The checkpoint itself says it, to whoever reads it later.
    assert rank.digests == {step: joint_digest(replica) for step, replica in rank.told.items()}
    held = catalogue.scan(tmp_path, "t", job="job", run=1, rank=0)
    assert {one.step: one.replica for one in held} == rank.digests


class Broken(Alike):
    @override
    def replica(self) -> dict[str, str]:
        raise RuntimeError("no such bits")


def test_what_cannot_be_said_costs_no_save(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rank = Rank(2, compares=True)
    rank.state = Broken(rank)
    rank.train(recovery.ModelCheckpoint("t", tmp_path, recovery.CheckpointConfig(2)), 2, asked_at=())
    assert rank.told == {2: {}}
    assert "event=replicas_not_compared step=2 reason='RuntimeError: no such bits'" in caplog.text
