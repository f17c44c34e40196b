"""A rank that saves where another one is handed over keeps its schedule: the ranks that were asked too late keep theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import recovery
from recovery.checkpoint.position import Position
from recovery.config import MemorySettings
from recovery.core.messages import HeldCheckpoint
from recovery.training.disk_schedule import DiskCommits
from recovery.training.state import Snapshot
from tests.cluster.small_job import Tally


class NotSaved(NamedTuple):
    """A save that failed, as the session is told of it."""

    step: int
    reason: str
    in_memory: bool


class OneRank:
    """What a callback sees of a session, without a scheduler."""

    recovery_enabled, compares_replicas = True, True
    job, run, rank, world_size, generation, incarnation = "job", 1, 0, 1, 1, 1
    previous_durable_step = committed_step = 0
    disk_commits = DiskCommits(0, 0, None)
    pinned_steps: tuple[int, ...] = ()
    pinned_in_memory: tuple[int, ...] = ()
    local_rank, local_world_size = 0, 1
    recovery_path: Path | None = None
    memory = MemorySettings(base=Path("/nonexistent"))
    versions: dict[str, str] = {}  # noqa: RUF012 - as the session has it

    def __init__(self) -> None:
        self.step = self.epoch = self.step_in_epoch = 0
        self.state: Snapshot | Tally = Tally()
        self.saved: list[int] = []
        self.not_saved: list[NotSaved] = []
        self.savers: list[Callable[[], None]] = []
        self.closers: list[Callable[[], None]] = []

    loss: float | None = None

    def read_loss(self) -> float | None:
        return self.loss

    @property
    def position(self) -> Position:
        return Position(step=self.step, epoch=0, batch=self.step_in_epoch)

    def checkpoint_directory(self, directory: Path, prefix: str) -> None:
        return

    def before_done(self, settle: Callable[[], None]) -> None:
        self.closers.append(settle)

    def on_generation_end(self, close: Callable[[], None]) -> None:
        self.closers.append(close)

    def save_when_asked(self, save: Callable[[], None]) -> None:
        self.savers.append(save)

    def checkpoint_published(self, checkpoint: HeldCheckpoint, replica: Mapping[str, str] = {}) -> None:
        self.saved.append(checkpoint.step)

    def checkpoint_not_saved(self, step: int, reason: str, *, in_memory: bool = False) -> None:
        self.not_saved.append(NotSaved(step, reason, in_memory))

    def still_owns_rank(self) -> bool:
        return True

    def train(self, saver: recovery.ModelCheckpoint, steps: int, *, asked_at: tuple[int, ...]) -> list[int]:
        session: Any = self
        saver.on_begin(session)
        for step in range(self.step + 1, steps + 1):
            self.step, self.epoch, self.step_in_epoch = step, 1, step
            saver.on_step_end(session)
            if step in asked_at:
                for save in self.savers:
                    save()
        saver.on_end(session)
        for close in self.closers:
            close()
        return self.saved


@pytest.mark.parametrize("async_save", [False, True])
@pytest.mark.parametrize(
    ("asked_at", "saved"),
    [((), [5, 10, 12]), ((3,), [3, 5, 10, 12]), ((5,), [5, 10, 12]), ((7, 8, 12), [5, 7, 8, 10, 12])],
)
def test_a_save_that_was_asked_for_comes_beside_those_of_the_schedule(
    tmp_path: Path, asked_at: tuple[int, ...], saved: list[int], async_save: bool
) -> None:
    config = recovery.CheckpointConfig(save_checkpoint_steps=5, keep_checkpoint_max=9, async_save=async_save)
    saver = recovery.ModelCheckpoint("t", tmp_path, config)
    assert OneRank().train(saver, 12, asked_at=asked_at) == saved
