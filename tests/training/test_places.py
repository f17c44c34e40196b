"""Which variables a process gets to know with the rank that it takes."""

from __future__ import annotations

import os

import msgspec
import pytest

from recovery import config
from recovery.core.ids import Generation, Rank, RunId
from recovery.core.messages import Rollback
from recovery.training.bootstrap import announce_rank, places_of
from tests.config.environments import WORKER

PLAN = Rollback(
    generation=Generation(2),
    run=RunId(1),
    step=0,
    epoch=0,
    step_in_epoch=0,
    rank=Rank(5),
    world_size=8,
    local_rank=1,
    local_world_size=4,
    path="",
    digest="",
    committed_step=0,
    because="",
)
TAKEN = {"RANK": "5", "LOCAL_RANK": "1", "DEVICE_ID": "1"}


def places(environ: dict[str, str]) -> dict[str, str]:
    return places_of(config.load({**WORKER, **environ}), PLAN, environ)


def test_a_worker_keeps_what_it_was_started_with() -> None:
    assert places({}) == {}
    assert places({"DEVICE_ID": "7"}) == {}


def test_a_standby_learns_its_place_with_its_rank() -> None:
    assert places({"MS_STANDBY": "1"}) == TAKEN
    assert places({"MS_STANDBY": "1", "DEVICE_ID": "7"}) == {"RANK": "5", "LOCAL_RANK": "1"}


def test_a_standby_of_a_job_with_torchruns_variables_learns_its_rank_in_the_role() -> None:
    taken = places({"MS_STANDBY": "1", "TORCHELASTIC_RUN_ID": "none"})
    assert taken == {**TAKEN, "ROLE_RANK": "5"}


def test_a_process_that_was_started_for_one_rank_may_have_taken_another() -> None:
    assert places({"MS_REPLACES": "worker_3", "RANK": "3", "LOCAL_RANK": "3", "DEVICE_ID": "3"}) == TAKEN


def test_the_place_on_the_host_stays_that_of_the_first_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK_ID", *TAKEN):
        monkeypatch.setenv(name, "3")
    settings = config.load({**WORKER, "MS_REPLACES": "worker_3"})
    announce_rank(settings, PLAN, is_first=True)
    assert {name: os.environ[name] for name in TAKEN} == TAKEN

    # A rank of this host was taken over elsewhere meanwhile.
    announce_rank(settings, msgspec.structs.replace(PLAN, local_rank=0), is_first=False)
    assert {name: os.environ[name] for name in TAKEN} == TAKEN
