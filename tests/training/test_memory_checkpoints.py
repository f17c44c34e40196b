"""Steps between two saves on the disk are saved in memory: two of them, within a bound, and nothing else stays there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

import recovery
from recovery.config import MemorySettings
from recovery.core.messages import HeldCheckpoint
from recovery.core.tiers import Tier, tier_of
from recovery.training import capture
from recovery.training.disk_schedule import DiskCommits
from recovery.worker import memory_tier_hold
from tests.cluster.small_job import Tally
from tests.training.test_capture import SIZE, Bytes
from tests.training.test_save_out_of_turn import OneRank

CONFIG = {"save_checkpoint_steps": 10, "keep_checkpoint_max": 9}


class Rank(OneRank):
    """One rank that saves in memory every second step; what it saves is committed as soon as it is reported, or never."""

    commits = True
    job_is_over = False
    disks_every = 0
    """All ranks' disks have each such step at once; 0: none is known."""

    def __init__(self, base: Path, **settings: Any) -> None:
        super().__init__()
        self.job = f"{base.name}-job"
        self.recovery_path = base / "recovery"
        self.memory = MemorySettings(base=base, **{"every_steps": 2, **settings})
        self.reported: list[HeldCheckpoint] = []
        self.most = 0
        """The most checkpoints in memory at the end of a save."""
        self.directories: list[Path] = []

    @property
    def in_memory(self) -> list[str]:
        """What lies there."""
        return sorted(file.name for directory in self.directories[1:] for file in directory.iterdir())

    @property
    @override
    def disk_commits(self) -> DiskCommits:  # type: ignore[override]  # no test sets it here
        """As the scheduler would have said it."""
        newest = self.step - self.step % self.disks_every if self.disks_every else 0
        return DiskCommits(0, 0, None, newest)

    @override
    def checkpoint_directory(self, directory: Path, prefix: str) -> None:
        self.directories.append(directory)

    @override
    def checkpoint_published(self, checkpoint: HeldCheckpoint, replica: Mapping[str, str] = {}) -> None:
        super().checkpoint_published(checkpoint)
        self.reported.append(checkpoint)
        self.most = max(self.most, len([name for name in self.in_memory if name.endswith(".ckpt")]))
        if self.commits:
            self.committed_step = max(self.committed_step, checkpoint.step)

    def steps_in(self, tier: Tier) -> list[int]:
        return [one.step for one in self.reported if tier_of(one.path) is tier]


class LaidOut(Tally):
    """A state that can be captured."""

    def lay_out(self) -> Bytes:
        return Bytes(1)


@pytest.fixture(autouse=True)
def _leave_memory() -> Iterator[None]:
    """What a process holds until its end, a test lets go of at its own."""
    yield
    capture.of_this_process().close()
    while memory_tier_hold._homes:
        memory_tier_hold._homes.popitem()[1].home.leave(job_is_over=True)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm"


def saver(tmp_path: Path, **config: Any) -> recovery.ModelCheckpoint:
    return recovery.ModelCheckpoint("t", tmp_path / "ckpt", recovery.CheckpointConfig(**{**CONFIG, **config}))


@pytest.mark.parametrize("async_save", [False, True])
def test_steps_that_do_not_go_to_the_disk_go_to_memory_and_two_of_them_stay(
    tmp_path: Path, base: Path, async_save: bool
) -> None:
    rank = Rank(base)
    rank.train(saver(tmp_path, async_save=async_save), 25, asked_at=(7,))
    assert rank.steps_in(Tier.MEMORY) == [2, 4, 6, 8, 12, 14, 16, 18, 22, 24]
    assert rank.steps_in(Tier.DISK) == [7, 10, 20, 25]
    assert rank.in_memory == ["t-1_22.ckpt", "t-1_22.json", "t-1_24.ckpt", "t-1_24.json"]
    assert rank.most == 2
    assert {file.name for file in (tmp_path / "ckpt").glob("*.ckpt")} == {
        f"t-1_{step}.ckpt" for step in (7, 10, 20, 25)
    }


def test_what_nobody_has_committed_stays_with_the_two_newest(tmp_path: Path, base: Path) -> None:
    """A rank may be one save behind: were its newest removed here, all would go back to the disk."""
    rank = Rank(base)
    rank.commits, rank.committed_step = False, 2
    rank.train(saver(tmp_path), 9, asked_at=())
    assert [name for name in rank.in_memory if name.endswith(".ckpt")] == [
        f"t-1_{step}.ckpt" for step in (2, 4, 6, 8)
    ]


def test_what_is_older_than_the_newest_on_all_disks_makes_room(tmp_path: Path, base: Path) -> None:
    """With room for one it would stay the only one for ever."""
    rank = Rank(base)
    rank.train(saver(tmp_path), 3, asked_at=())
    one = rank.reported[0].file_bytes
    rank = Rank(base, bytes_max=one + 4)
    rank.disks_every = 10
    rank.train(saver(tmp_path / "of its own"), 25, asked_at=())
    assert rank.steps_in(Tier.MEMORY) == [2, 12, 22]
    assert rank.most == 1
    assert rank.in_memory == ["t-1_22.ckpt", "t-1_22.json"]


def test_what_other_hosts_have_in_memory_stays_behind_a_newer_one_on_the_disk(
    tmp_path: Path, base: Path
) -> None:
    rank = Rank(base)
    rank.disks_every, rank.pinned_in_memory = 10, (8,)
    rank.train(saver(tmp_path), 15, asked_at=())
    assert [name for name in rank.in_memory if name.endswith(".ckpt")] == [
        f"t-1_{step}.ckpt" for step in (12, 14, 8)
    ]


def test_what_does_not_fit_is_said_once_and_leaves_the_disk_alone(tmp_path: Path, base: Path) -> None:
    rank = Rank(base, bytes_max=10)
    rank.train(saver(tmp_path), 20, asked_at=())
    assert rank.steps_in(Tier.MEMORY) == []
    assert rank.steps_in(Tier.DISK) == [10, 20]
    [failed] = rank.not_saved
    assert failed.in_memory
    assert "MS_MEMORY_CHECKPOINT_BYTES" in failed.reason
    assert rank.in_memory == []


def test_all_that_is_held_stays_within_the_bound(tmp_path: Path, base: Path) -> None:
    rank = Rank(base)
    rank.train(saver(tmp_path), 3, asked_at=())
    one = rank.reported[0].file_bytes
    rank = Rank(base, bytes_max=2 * one + 4)
    rank.commits, rank.committed_step = False, 0
    rank.train(saver(tmp_path, save_checkpoint_steps=100), 40, asked_at=())
    held = list(rank.directories[1].glob("*.ckpt"))
    assert sum(file.stat().st_size for file in held) <= 2 * one + 4
    assert len(held) == 2


def test_a_state_that_can_be_captured_is_written_by_another_process(tmp_path: Path, base: Path) -> None:
    rank = Rank(base)
    rank.state = LaidOut()
    rank.train(saver(tmp_path), 9, asked_at=())
    assert rank.steps_in(Tier.MEMORY) == [2, 4, 6, 8]
    assert capture.of_this_process().writer_pid is not None
    [newest] = [Path(one.path) for one in rank.reported if one.step == 8]
    assert newest.read_bytes() == bytes([1]) * SIZE


def test_a_captured_state_that_does_not_fit_is_not_saved_and_the_next_capture_begins(
    tmp_path: Path, base: Path
) -> None:
    rank = Rank(base, bytes_max=SIZE - 1)
    rank.state = LaidOut()
    rank.train(saver(tmp_path), 20, asked_at=())
    assert (rank.steps_in(Tier.MEMORY), rank.steps_in(Tier.DISK)) == ([], [10, 20])
    assert [failed.in_memory for failed in rank.not_saved] == [True]
    assert rank.in_memory == []


@pytest.mark.parametrize("async_save", [False, True])
def test_a_save_in_memory_does_not_wait_for_a_slow_disk(tmp_path: Path, base: Path, async_save: bool) -> None:
    """The disk's save has the memory for captures until it is written."""
    slow = capture.of_this_process().capture(Bytes(2))
    assert slow is not None
    rank = Rank(base)
    rank.state = LaidOut()
    session: Any = rank
    by_ranks = saver(tmp_path, async_save=async_save)
    by_ranks.on_begin(session)
    rank.step, rank.epoch, rank.step_in_epoch = 2, 1, 2
    by_ranks.on_step_end(session)
    for settle in rank.closers:
        settle()
    assert rank.steps_in(Tier.MEMORY) == [2]
    assert Path(rank.reported[0].path).read_bytes() == b'{"value": "", "batch": 0}'
    slow.close()


def test_a_generation_that_begins_removes_what_was_rolled_back_or_never_finished(
    tmp_path: Path, base: Path
) -> None:
    rank = Rank(base)
    rank.train(saver(tmp_path), 9, asked_at=())
    directory = rank.directories[1]
    (directory / ".t-1_9.ckpt.123-abc.tmp").write_bytes(b"x")
    (directory / "t-1_4.ckpt.kept-1").write_bytes(b"x")
    (directory / "t-1_3.ckpt").write_bytes(b"without its manifest")

    again = Rank(base)
    again.step, again.epoch, again.step_in_epoch = 6, 1, 6
    session: Any = again
    saver(tmp_path).on_begin(session)
    for close in again.closers:
        close()

    assert again.in_memory == ["t-1_6.ckpt", "t-1_6.json"]


def test_another_users_directory_turns_it_off_with_one_line(
    tmp_path: Path, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rank = Rank(base)
    trap = base / f"recovery-memory-{os.geteuid()}-{rank.job}"
    trap.mkdir()
    trap.chmod(0o777)
    rank.train(saver(tmp_path), 12, asked_at=())
    assert rank.saved == [10, 12]
    assert caplog.text.count("event=memory_checkpoints_off") == 1


@pytest.mark.parametrize("off", ["no steps", "no recovery"])
def test_without_the_setting_or_without_recovery_nothing_is_made(
    tmp_path: Path, base: Path, off: str
) -> None:
    rank = Rank(base, every_steps=0 if off == "no steps" else 2)
    rank.recovery_enabled = off == "no steps"
    rank.train(saver(tmp_path), 12, asked_at=())
    assert rank.saved == [10, 12]
    assert list(base.iterdir()) == []
