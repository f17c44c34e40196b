"""Saves on the disk go on whatever the plans go back to: their turns follow the global step, or the last commit, and no generation's begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import recovery
from recovery.training.disk_schedule import DiskCommits, DiskSchedule
from tests.training.test_save_out_of_turn import OneRank

EVERY = 40


def entered(
    tmp_path: Path, at: int, durable_step: int, **config: Any
) -> tuple[OneRank, recovery.ModelCheckpoint]:
    """A rank in a generation that begins at a step, of which the disks have an older one."""
    rank = OneRank()
    rank.step = rank.step_in_epoch = at
    rank.epoch, rank.disk_commits = 1, DiskCommits(durable_step, 0, None)
    config = {"save_checkpoint_steps": EVERY, "keep_checkpoint_max": 9, **config}
    return rank, recovery.ModelCheckpoint("t", tmp_path, recovery.CheckpointConfig(**config))


@pytest.mark.parametrize(
    ("at", "durable_step", "saved"),
    [
        (0, 0, [40, 80, 120, 125]),
        (30, 0, [40, 80, 120, 125]),
        (47, 47, [80, 120, 125]),
        (80, 80, [120, 125]),
        (95, 80, [120, 125]),
        (95, 40, [96, 120, 125]),
        (95, 0, [96, 120, 125]),
    ],
)
def test_turns_follow_the_global_step_and_one_that_was_lost_comes_again(
    tmp_path: Path, at: int, durable_step: int, saved: list[int]
) -> None:
    rank, saver = entered(tmp_path, at, durable_step)
    assert rank.train(saver, 125, asked_at=()) == saved


def test_the_last_step_is_saved_on_the_disk_though_the_plan_went_to_it_in_memory(tmp_path: Path) -> None:
    rank, saver = entered(tmp_path, 60, 40)
    assert rank.train(saver, 60, asked_at=()) == [60]


def test_a_rank_that_is_handed_over_where_its_plan_began_saves_what_lies_in_memory_alone(
    tmp_path: Path,
) -> None:
    rank, saver = entered(tmp_path, 61, 40)
    session: Any = rank
    saver.on_begin(session)
    rank.savers[0]()
    for close in rank.closers:
        close()
    assert rank.saved == [61]


@pytest.mark.parametrize("failures_apart", range(11, 90))
def test_the_disk_never_falls_behind_by_more_than_a_turn_and_what_two_failures_are_apart(
    failures_apart: int,
) -> None:
    """Memory every 5 steps, the disk every 40 with 9 steps for the write. All goes well between failures that are a step and a write apart."""
    write_steps, durable, at = 9, 0, 0
    for _ in range(60):
        schedule, under_way = DiskSchedule(every_steps=EVERY, every_seconds=0), 0
        schedule.begin(durable_step=durable, since_commit_ms=None)
        for step in range(at + 1, at + failures_apart + 1):
            if under_way and step - under_way >= write_steps:
                durable, under_way = under_way, 0
            if schedule.takes_turn(step, now_ms=0, committed_ms=None):
                under_way = step
            assert step - durable <= EVERY + failures_apart + write_steps
        at = (at + failures_apart) // 5 * 5


def turns(schedule: DiskSchedule, seconds: list[int], *, committed_s: int | None = None) -> list[int]:
    """At which of these seconds a step has a turn."""
    committed_ms = None if committed_s is None else committed_s * 1000
    return [
        second
        for second in seconds
        if schedule.takes_turn(second, now_ms=second * 1000, committed_ms=committed_ms)
    ]


@pytest.mark.parametrize(
    ("since_ms", "expected"),
    [
        (0, [70, 130]),
        (45_000, [25, 85]),
        (60_000, [10, 70, 130]),
        (500_000, [10, 50, 110]),
        (None, [10, 70, 130]),
    ],
)
def test_turns_by_time_count_from_the_last_commit_and_not_from_the_start_of_a_process(
    since_ms: int | None, expected: list[int]
) -> None:
    """Steps end at seconds 10, 11, 12 and so on. What is overdue is saved behind the first of them."""
    schedule = DiskSchedule(every_steps=0, every_seconds=60)
    schedule.begin(durable_step=0, since_commit_ms=since_ms)
    assert turns(schedule, list(range(10, 140))) == expected


def test_a_commit_that_is_heard_of_begins_the_count_again_on_all_ranks() -> None:
    """Ranks whose saves fell on both sides of a step meet again: they count from what both have heard."""
    schedule = DiskSchedule(every_steps=0, every_seconds=60)
    schedule.begin(durable_step=0, since_commit_ms=0)
    assert turns(schedule, list(range(10, 100))) == [70]
    assert turns(schedule, list(range(100, 200)), committed_s=90) == [150]


def test_without_steps_and_seconds_there_is_no_turn() -> None:
    schedule = DiskSchedule(every_steps=0, every_seconds=0)
    assert turns(schedule, [1, 10**9]) == []


def test_a_saver_by_time_saves_at_the_first_step_when_nobody_knows_of_a_commit(tmp_path: Path) -> None:
    rank, saver = entered(tmp_path, 95, 0, save_checkpoint_steps=0, save_checkpoint_seconds=3600)
    rank.disk_commits = DiskCommits(0, None, None)
    assert rank.train(saver, 97, asked_at=()) == [96, 97]
