"""Deaths of drawn ranks at drawn moments, while callbacks change the training from epoch to epoch: it ends with the bits of one that nothing happens to."""

from __future__ import annotations

import random
from pathlib import Path
from typing import cast

import pytest

from tests.cluster.undisturbed import Undisturbed, undisturbed_runs
from tests.trainers.lightning_cluster import LightningCluster

pytestmark = [pytest.mark.trainers, pytest.mark.cluster, pytest.mark.slow]

EPOCHS, BATCHES, KILLS = 5, 13, 6
CALLBACKS = ("accumulation", "averaging", "backbone")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Trainings that nothing happens to."""
    return undisturbed_runs(LightningCluster, tmp_path_factory)


def _drawn(draw: random.Random) -> str:
    where = draw.choice(["step", "step", "save", "validation", "epoch"])
    last = {"step": EPOCHS * BATCHES, "save": EPOCHS * BATCHES - 1}.get(where, EPOCHS)
    return f"{draw.randrange(2)}:{where}:{draw.randint(1, last)}"


@pytest.mark.parametrize("seed", [11])
@pytest.mark.parametrize("callbacks", CALLBACKS)
def test_whenever_ranks_die(tmp_path: Path, undisturbed: Undisturbed, callbacks: str, seed: int) -> None:
    draw = random.Random(f"{callbacks} {seed}")
    environment = {"JOB_EPOCHS": str(EPOCHS), "JOB_CALLBACKS": callbacks}
    kills = sorted({_drawn(draw) for _ in range(KILLS)})
    with LightningCluster(
        tmp_path, workers=2, environment={**environment, "JOB_KILLS": " ".join(kills)}
    ) as cluster:
        assert cluster.run_with_deaths() == len(kills), kills
        cluster.check_fit_like(cast("LightningCluster", undisturbed(workers=2, **environment)))
