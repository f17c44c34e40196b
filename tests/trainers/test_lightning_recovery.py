"""Lightning's Trainer.fit: whatever dies, the survivors keep their processes, and training ends with the same bits."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import cast

import pytest

from recovery.core.records import EventKind
from tests.cluster.test_drain import check_handed_over
from tests.cluster.test_standbys import start_with_standbys
from tests.cluster.undisturbed import Undisturbed, undisturbed_runs
from tests.trainers.lightning_cluster import LightningCluster

pytestmark = [pytest.mark.trainers, pytest.mark.cluster]

SEEDS = range(5)
BATCHES = 13
"""Of an epoch and rank."""


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Trainings that nothing happens to."""
    return undisturbed_runs(LightningCluster, tmp_path_factory)


def _check(cluster: LightningCluster, undisturbed: Undisturbed, **environment: str) -> None:
    cluster.check_fit_like(cast("LightningCluster", undisturbed(workers=cluster.workers, **environment)))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_goes_on_in_the_middle_of_an_epoch(
    tmp_path: Path, undisturbed: Undisturbed, rank: int
) -> None:
    with LightningCluster(tmp_path, workers=2, environment={"JOB_HELD_STEP": "20"}) as cluster:
        cluster.start()
        cluster.wait(lambda: cluster.step_of_all() >= 20, "step 20 of all")
        cluster.wait_commit(15)
        cluster.kill_and_relaunch(cluster.name_of(rank))
        cluster.go_on()
        cluster.wait_end()

        assert [stored.event.step for stored in cluster.events(EventKind.PLAN_MADE)] == [0, 15]
        _check(cluster, undisturbed)
        assert len(cluster.pids(rank)) == 2
        assert len(cluster.pids(1 - rank)) == 1, "the survivor's process was replaced"


def test_sigterm_hands_the_rank_to_a_standby_and_no_batch_is_lost(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    environment = {"JOB_HELD_STEP": "8", "MS_DRAIN_TIMEOUT": "120"}
    with LightningCluster(tmp_path, workers=2, window_s=30, environment=environment) as cluster:
        start_with_standbys(cluster, 1)
        cluster.wait(lambda: cluster.step_of_all() >= 8, "step 8 of all")
        name = cluster.name_of(1)
        cluster.signal(name, signal.SIGTERM)
        cluster.wait_event(EventKind.DRAIN_BEGUN)
        cluster.go_on()
        check_handed_over(cluster, name)
        _check(cluster, undisturbed)


def test_an_interrupt_of_the_keyboard_is_a_stop_and_no_failure(tmp_path: Path) -> None:
    with LightningCluster(tmp_path, workers=1, environment={"JOB_HELD_STEP": "3"}) as cluster:
        cluster.start()
        cluster.wait_step(3)
        cluster.signal("worker_0", signal.SIGINT)
        process = cluster.processes["worker_0"]
        cluster.wait(lambda: process.poll() is not None, "end of the worker")
        assert process.returncode == 128 + signal.SIGINT, cluster.tails()
        assert "stopped by SIGINT" in cluster.log("worker_0")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_rank_that_is_asked_to_end_does_not_save_with_ranks_that_train_on(
    tmp_path: Path, undisturbed: Undisturbed, rank: int, number: signal.Signals
) -> None:
    """Lightning's ModelCheckpoint saves on any exception, with a barrier of all ranks."""
    environment = {"JOB_HELD_STEP": "20", "MS_DRAIN_TIMEOUT": "120"}
    with LightningCluster(tmp_path, workers=2, environment=environment) as cluster:
        cluster.start()
        cluster.wait(lambda: cluster.step_of_all() >= 20, "step 20 of all")
        name = cluster.name_of(rank)
        cluster.signal(name, number)
        if number is signal.SIGTERM:
            cluster.wait_event(EventKind.DRAIN_BEGUN)
        cluster.go_on()
        process = cluster.processes[name]
        cluster.wait(lambda: process.poll() is not None, f"end of {name}")
        assert process.returncode == 128 + number, cluster.tails()
        cluster.launch(name)
        cluster.wait_end()
        _check(cluster, undisturbed)


SETTINGS = {
    "accumulated gradients": {"JOB_ACCUMULATE": "3"},
    "worker processes and mixed precision": {"JOB_LOADER_WORKERS": "2", "JOB_PRECISION": "bf16-mixed"},
    "two loaders of different lengths": {"JOB_LOADERS": "two"},
    "hooks that set what the steps depend on": {"JOB_CALLBACKS": "hooks"},
    "two loaders, to the end of the shorter one": {"JOB_LOADERS": "least", "JOB_EPOCHS": "4"},
    "two loaders, the shorter one again and again": {"JOB_LOADERS": "cycled"},
    "two optimizers that the module steps by itself": {"JOB_MANUAL": "1"},
    "validation behind batches of all epochs": {"JOB_VAL_BATCHES": "9"},
    "another accumulation in each epoch": {"JOB_CALLBACKS": "accumulation", "JOB_EPOCHS": "4"},
    "a backbone that thaws, and averaged weights": {
        "JOB_CALLBACKS": "backbone averaging",
        "JOB_EPOCHS": "4",
    },
    "a data set without a length": {"JOB_LOADERS": "stream"},
    "checkpoints in memory": {"MS_MEMORY_CHECKPOINT_STEPS": "1"},
    "a number of steps in the middle of an epoch": {"JOB_MAX_STEPS": "31"},
    "validation twice an epoch, stopped early": {"JOB_VAL_EVERY": "0.5", "JOB_PATIENCE": "2"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_whatever_the_trainer_is_asked_for(tmp_path: Path, undisturbed: Undisturbed, name: str) -> None:
    environment = SETTINGS[name]
    kills = {"JOB_KILLS": "0:step:8 1:step:17 1:validation:2"}
    with LightningCluster(tmp_path, workers=2, environment={**environment, **kills}) as cluster:
        assert cluster.run_with_deaths() == 3
        _check(cluster, undisturbed, **environment)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_whenever_ranks_die(tmp_path: Path, undisturbed: Undisturbed, seed: int) -> None:
    """Four deaths of each seed: in a batch, in a save, in validation, at an epoch's end, of either rank or of both."""
    draw = random.Random(seed)
    environment = {"JOB_EPOCHS": "4"}
    last = 4 * BATCHES
    kills = [
        f"{draw.randrange(2)}:step:{draw.randrange(1, last)}",
        f"{draw.randrange(2)}:save:{5 * draw.randrange(1, last // 5)}",
        f"{draw.randrange(2)}:validation:{draw.randrange(1, 5)}",
        f"{draw.randrange(2)}:epoch:{draw.randrange(1, 4)}",
    ]
    if seed == SEEDS[-1]:
        number = draw.randrange(1, last)
        kills[0:2] = [f"0:step:{number}", f"1:step:{number}"]
    with LightningCluster(
        tmp_path, workers=2, environment={**environment, "JOB_KILLS": " ".join(kills)}
    ) as cluster:
        deaths = cluster.run_with_deaths()
        assert deaths == len(set(kills)), kills
        assert len(cluster.pids(0) | cluster.pids(1)) == 2 + deaths, "a survivor's process was replaced"
        _check(cluster, undisturbed, **environment)
