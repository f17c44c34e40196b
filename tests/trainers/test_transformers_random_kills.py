"""Twenty kills of drawn processes at drawn moments, in one training: it ends with the bits of one that nothing happens to."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.undisturbed import Undisturbed
from tests.trainers.transformers_cluster import (
    AccelerateCluster,
    TransformersCluster,
    arguments,
    undisturbed_accelerate,
    undisturbed_trainer,
)

pytestmark = [pytest.mark.trainers, pytest.mark.slow]
__all__ = ["undisturbed_accelerate", "undisturbed_trainer"]

KILLS = 20
VICTIMS = (("worker_0",), ("worker_1",), ("worker_0", "worker_1"))
TRAINER = arguments(
    num_train_epochs=12,
    eval_strategy="steps",
    eval_steps=4,
    save_steps=4,
    load_best_model_at_end=True,
    save_total_limit=2,
)
ACCELERATE = {"JOB_EPOCHS": "12", "JOB_SAVE_STEPS": "4"}


def kill_again_and_again(cluster: AccelerateCluster, seed: int) -> None:
    drawn = random.Random(seed)
    cluster.start()
    for kill in range(1, KILLS + 1):
        cluster.wait_step(cluster.step() + drawn.randint(1, 9), generation=kill)
        # Anywhere: in a step, a save, an evaluation, an epoch's end.
        time.sleep(drawn.uniform(0, 0.1))
        cluster.kill_and_relaunch(*drawn.choice(VICTIMS))
        cluster.wait_event(EventKind.PLAN_MADE, count=kill + 1)
    cluster.wait_end()
    assert len(cluster.events(EventKind.PLAN_MADE)) == KILLS + 1


def test_the_trainer(tmp_path: Path, undisturbed_trainer: Undisturbed) -> None:
    job = {**TRAINER, "JOB_STEP_MS": "30"}
    with TransformersCluster(tmp_path, environment=job) as cluster:
        kill_again_and_again(cluster, 1)
        cluster.check_same_bits_as(undisturbed_trainer(workers=2, **TRAINER))


def test_accelerate(tmp_path: Path, undisturbed_accelerate: Undisturbed) -> None:
    job = {**ACCELERATE, "JOB_STEP_MS": "30"}
    with AccelerateCluster(tmp_path, environment=job) as cluster:
        kill_again_and_again(cluster, 2)
        cluster.check_same_bits_as(undisturbed_accelerate(workers=2, **ACCELERATE))
