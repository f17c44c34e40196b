"""Kills of scripts as people write them, the same bits. Many more: `python -m tests.soak.scripts --kills 200`; with trainers: tests/trainers/test_script_kills.py."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.soak.script_faces import FACES, Form, drawn
from tests.soak.scripts import Soak, blows


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize(
    "chosen", [("weights", "freezes", "generator"), ("workers", "group", "hook"), ("iterator", "accumulates")]
)
def test_a_kill_of_a_script_with_three_lines_changes_neither_bits_nor_samples(
    tmp_path: Path, chosen: tuple[str, ...]
) -> None:
    struck = Soak(tmp_path).train(Form("three_lines", chosen, workers=2), kills=2, seed=1)

    assert not struck.fault
    assert struck.done.total() == 2


@pytest.mark.parametrize("face", FACES)
def test_every_feature_is_drawn_and_none_beside_one_that_excludes_it(face: str) -> None:
    of, found = FACES[face], set()
    for seed in range(200):
        form = drawn(face, random.Random(seed))
        found |= {*form.chosen}
        assert all(len(some.intersection(form.chosen)) < 2 for some in of.apart)
        assert form == drawn(face, random.Random(seed))
    assert found == {*of.data, *of.features}


def test_features_that_share_a_variable_are_all_in_it() -> None:
    words = Form("lightning", ("rows", "backbone", "hooks"), 2).environment["JOB_CALLBACKS"]
    assert words == "backbone hooks"
    given = Form("transformers", ("stream", "best", "plateau"), 2).environment["JOB_ARGUMENTS"]
    assert {"max_steps", "save_strategy", "lr_scheduler_type"} <= {*json.loads(given)}


def test_a_seed_draws_the_same_blows_in_the_order_of_their_steps_before_the_end() -> None:
    found = blows(random.Random(3), 8, last=60)

    assert found == blows(random.Random(3), 8, last=60)
    steps = [blow.step for blow in found if blow.step]
    assert steps == sorted(steps)
    assert steps[-1] < 60
    assert found[0].step > 0, "nothing is recovered from yet"
