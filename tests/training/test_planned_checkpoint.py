"""A plan's folder is loaded by who wrote it, a plan's file by us: neither is taken for the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from recovery.core.ids import Generation, Rank, RunId
from recovery.core.messages import Rollback
from recovery.errors import CheckpointStateError
from recovery.training.planned_checkpoint import PlannedCheckpoint, for_manifest
from tests.cluster.small_job import Tally


def planned(path: str) -> PlannedCheckpoint:
    """Refused before anybody is asked, so no service is needed."""
    nobody: Any = None
    plan = Rollback(
        run=RunId(1),
        generation=Generation(2),
        rank=Rank(0),
        world_size=1,
        local_rank=0,
        local_world_size=1,
        step=10,
        epoch=1,
        step_in_epoch=10,
        path=path,
        digest="d",
        committed_step=10,
        because="a worker was lost",
    )
    return PlannedCheckpoint(nobody, plan, "job")


def test_a_folder_that_nobody_took_is_not_passed_over() -> None:
    with pytest.raises(CheckpointStateError, match="resume_from"):
        planned("/ckpt/step_10/").load(Tally())


def test_a_file_of_ours_is_no_folder_to_resume_from() -> None:
    with pytest.raises(CheckpointStateError, match="ModelCheckpoint"):
        planned("/ckpt/train-1_10.ckpt").folder({})


def test_a_manifest_says_what_a_state_says_of_how_it_was_built() -> None:
    class Built(Tally):
        def built(self) -> dict[str, str]:
            return {"dataset.batch_size": "4"}

        def compare(self, saved: Mapping[str, str]) -> None:
            """Nothing differs."""

    assert for_manifest(Tally()) == Tally().versions()
    assert for_manifest(Built()) == {**Tally().versions(), "dataset.batch_size": "4"}
