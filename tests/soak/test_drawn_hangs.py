"""Ranks that hang in a job of a drawn form. Many more: `python -m tests.soak.hangs --hangs 200`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.soak.hanging import KINDS
from tests.soak.hangs import Hang, HangSoak, drawn_form, drawn_hang
from tests.soak.script_faces import Form


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("kind", ["loader", "locks", "skipped"])
def test_the_rank_that_hangs_is_named_and_training_ends_with_the_same_bits(tmp_path: Path, kind: str) -> None:
    soak, form = HangSoak(tmp_path), Form("three_lines", ("weights", "group"), workers=2)
    last = soak.of(form).step()
    hang = Hang(kind, 0, last - 1 if kind == "skipped" else 20)
    verdict = soak.hang(form, hang)

    assert not verdict.fault
    assert verdict.rank == hang.rank
    assert verdict.limit_s <= verdict.told_s


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_draws_the_same_hang_before_the_end(kind: str) -> None:
    drawn = [drawn_hang(kind, random.Random(seed), workers=2, last=70) for seed in (*range(40), *range(40))]

    assert drawn[:40] == drawn[40:]
    assert {hang.rank for hang in drawn} == {0, 1}
    assert max(hang.step for hang in drawn) < 70
    assert all(drawn_form("loader", random.Random(seed)).chosen[0] != "workers" for seed in range(40))
