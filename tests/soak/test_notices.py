"""Notices at random moments. Many more: `python -m tests.soak.notices --notices 1000`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.network import network
from tests.soak.drawn_notices import FACES_HERE, MOMENTS, SOURCES, Shape, drawn_notices, drawn_shape
from tests.soak.notices import NoticeSoak
from tests.soak.script_faces import Form


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.faults
def test_hosts_that_leave_and_come_back_lose_no_step(tmp_path: Path) -> None:
    shape = Shape(Form("plain", ("run", "evaluates"), workers=2), hosts=2, standbys="none")
    with network(2) as made:
        fault, done, lost = NoticeSoak(tmp_path).give(shape, made, notices=3, seed=1)

    assert not fault
    assert done.total() == 3
    assert lost == 0 or any("too near" in kind for kind in done)


@pytest.mark.parametrize("face", FACES_HERE)
def test_every_way_and_moment_is_drawn_and_the_same_seed_draws_the_same(face: str) -> None:
    sources, moments, shapes = set[str](), set[str](), set[tuple[int, str]]()
    for seed in range(100):
        shape = drawn_shape(face, random.Random(seed))
        notices = drawn_notices(random.Random(seed), shape, 6)
        assert notices == drawn_notices(random.Random(seed), shape, 6)
        assert all(notice.host < shape.hosts and notice.rank < shape.form.workers for notice in notices)
        sources |= {notice.source for notice in notices}
        moments |= {notice.moment for notice in notices}
        shapes.add((shape.hosts, shape.standbys))
    assert (sources, moments) == ({*SOURCES}, {*MOMENTS, "start"})
    assert len(shapes) == 3 * 3
