"""MindSpore's own ModelCheckpoint saves at the same steps and after the same time, wherever a generation begins."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.mindspore


def saver(**config: int) -> Any:
    from mindspore.train import CheckpointConfig, ModelCheckpoint

    return ModelCheckpoint(prefix="t", config=CheckpointConfig(**config))


def saves(one: Any, step: int) -> bool:
    return bool(one._check_save_ckpt(SimpleNamespace(cur_step_num=step), False))


def count_from(one: Any, step: int, since_commit_ms: int | None) -> None:
    from recovery.mindspore.model import _count_from

    _count_from(one, step, since_commit_ms)


def test_a_save_every_so_many_steps_is_at_their_multiples() -> None:
    one = saver(save_checkpoint_steps=40)
    count_from(one, 47, 0)
    assert [step for step in range(48, 81) if saves(one, step)] == [80]


@pytest.mark.parametrize(("since_commit_ms", "is_due"), [(0, False), (3_700_000, True), (None, True)])
def test_a_save_every_so_many_seconds_counts_from_the_last_commit(
    since_commit_ms: int | None, is_due: bool
) -> None:
    one = saver(save_checkpoint_steps=0, save_checkpoint_seconds=3_600)
    one._last_time = time.time()
    count_from(one, 10, since_commit_ms)
    assert saves(one, 11) is is_due
