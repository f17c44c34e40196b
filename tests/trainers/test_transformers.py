"""The Trainer of transformers: whatever dies, wherever it stands, training ends with the same bits, and who lived keeps its process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.undisturbed import Undisturbed
from tests.trainers.transformers_cluster import TransformersCluster, arguments, killed, undisturbed_trainer

pytestmark = pytest.mark.trainers
__all__ = ["undisturbed_trainer"]


def run(directory: Path, undisturbed: Undisturbed, victim: str, held: str, back_to: int, **job: str) -> None:
    with TransformersCluster(directory, environment={**job, "JOB_HELD": held}) as cluster:
        killed(cluster, undisturbed, victim, back_to, **job)


def test_a_killed_rank_goes_on_within_an_epoch_with_the_same_bits(
    tmp_path: Path, undisturbed_trainer: Undisturbed
) -> None:
    run(tmp_path, undisturbed_trainer, "worker_1", "step@13", 10)


def test_rank_0_is_killed(tmp_path: Path, undisturbed_trainer: Undisturbed) -> None:
    run(tmp_path, undisturbed_trainer, "worker_0", "step@23", 20)


EVALUATED = {"eval_strategy": "steps", "eval_steps": 5, "load_best_model_at_end": True}
BEST = {
    "eval_strategy": "steps",
    "eval_steps": 19,
    "save_strategy": "best",
    "metric_for_best_model": "loss",
    "load_best_model_at_end": True,
}
ACCUMULATED = {**BEST, "eval_steps": 5, "learning_rate": 0.01, "gradient_accumulation_steps": 2}
CASES = {
    "in the evaluation": ("evaluation@10", arguments(**EVALUATED), 5),
    "in a save": ("save@10", {}, 5),
    "where an epoch ends": ("epoch@19", arguments(save_steps=19), 0),
    "in the evaluation that an epoch ends with": (
        "evaluation@19",
        arguments(eval_strategy="epoch", save_steps=19, num_train_epochs=3),
        0,
    ),
    "behind the save of an epoch's end": (
        "step@20",
        arguments(eval_strategy="epoch", save_steps=19, lr_scheduler_type="reduce_lr_on_plateau"),
        19,
    ),
    "before anything is saved": ("step@3", {}, 0),
    "behind the last step": ("end@22", arguments(max_steps=22), 22),
    "in a fraction of an epoch": ("step@24", arguments(num_train_epochs=1.5), 20),
    "with accumulated gradients": ("step@8", arguments(gradient_accumulation_steps=4, save_steps=3), 6),
    "saved once an epoch": ("step@25", arguments(save_strategy="epoch", eval_strategy="epoch"), 19),
    "shuffled without a seed of its own": (
        "step@30",
        arguments(accelerator_config={"use_seedable_sampler": False}),
        25,
    ),
    "behind a save that the evaluation of an epoch's last step asked for": (
        "step@24",
        arguments(**BEST, learning_rate=0.01),
        19,
    ),
    "where training ends, behind such a save": (
        "epoch@38",
        arguments(**BEST, learning_rate=0.01, eval_on_start=True),
        38,
    ),
    "in batches of balanced lengths": (
        "step@28",
        {**arguments(train_sampling_strategy="batch_rebalance"), "JOB_LENGTHS": "1"},
        25,
    ),
    "in an order that its sampler draws anew in each epoch": ("step@28", {"JOB_PASSES": "1"}, 25),
    "behind a save that a callback asked for in the evaluation of an epoch's last step": (
        "step@24",
        {
            **arguments(eval_strategy="steps", eval_steps=19, save_strategy="no"),
            "JOB_ASKS": "1",
        },
        19,
    ),
    "where a callback has unfrozen a layer": (
        "step@28",
        {**arguments(ddp_find_unused_parameters=True), "JOB_UNFREEZES": "1"},
        25,
    ),
    "where the epoch before has added a group": (
        "step@44",
        {**arguments(num_train_epochs=3), "JOB_ADDS": "1"},
        40,
    ),
    "where this epoch has added a group": ("step@28", {**arguments(), "JOB_ADDS": "1"}, 25),
    "with what callbacks and a Trainer of one's own count": (
        "step@28",
        {**arguments(eval_strategy="steps", eval_steps=5), "JOB_COUNTS": "1"},
        25,
    ),
    "with what they count, where an epoch begins": (
        "step@20",
        {**arguments(eval_strategy="epoch", save_steps=19), "JOB_COUNTS": "1"},
        19,
    ),
    "with what they count, behind a save that an epoch's last evaluation asked for": (
        "step@24",
        {**arguments(**BEST, learning_rate=0.01), "JOB_COUNTS": "1"},
        19,
    ),
    "in batches of like lengths": (
        "step@28",
        {**arguments(train_sampling_strategy="group_by_length"), "JOB_LENGTHS": "1"},
        25,
    ),
    "with two loader workers that stay": (
        "step@28",
        arguments(dataloader_num_workers=2, dataloader_persistent_workers=True),
        25,
    ),
    "with accumulated gradients, of which the best are saved": ("step@13", arguments(**ACCUMULATED), 10),
    "between an evaluation and its save of the best": ("save@15", arguments(**ACCUMULATED), 10),
    "between an evaluation and its save, with a limit": (
        "save@15",
        arguments(**EVALUATED, save_total_limit=2),
        10,
    ),
    "with loader workers": ("step@13", arguments(dataloader_num_workers=1), 10),
    "with compressed gradients": ("step@28", {**arguments(), "JOB_HOOK": "1"}, 25),
}


@pytest.mark.parametrize("case", CASES)
def test_a_rank_is_killed(tmp_path: Path, undisturbed_trainer: Undisturbed, case: str) -> None:
    held, job, back_to = CASES[case]
    run(tmp_path, undisturbed_trainer, "worker_1", held, back_to, **job)


def test_what_a_callback_counts_in_an_object_of_its_own_is_named(tmp_path: Path) -> None:
    job = {**arguments(eval_strategy="steps", eval_steps=5, max_steps=12), "JOB_COUNTS": "1"}
    with TransformersCluster(tmp_path, environment=job) as cluster:
        cluster.run()
        named = [line for line in cluster.log("worker_0").splitlines() if "event=attributes_not_kept" in line]
    assert len(named) == 1
    assert "attribute=Counts_0.log.__dict__" in named[0]


def test_the_best_model_stays_however_old_and_is_loaded_in_the_end(
    tmp_path: Path, undisturbed_trainer: Undisturbed
) -> None:
    # The first evaluation is the worst, and so the best here.
    job = arguments(
        **EVALUATED, metric_for_best_model="loss", greater_is_better=True, save_total_limit=1, max_steps=32
    )
    run(tmp_path, undisturbed_trainer, "worker_1", "step@28", 25, **job)
    for directory in (tmp_path, undisturbed_trainer(workers=2, **job).directory):
        left = folders(directory)
        assert "checkpoint-5" in left
        assert not {"checkpoint-10", "checkpoint-15", "checkpoint-20"} & left


def folders(directory: Path) -> set[str]:
    return {path.name for path in (directory / "out").iterdir() if path.is_dir()}


def test_as_many_folders_stay_as_transformers_alone_leaves_where_each_evaluation_is_the_best(
    tmp_path: Path, undisturbed_trainer: Undisturbed
) -> None:
    chosen = {**EVALUATED, "metric_for_best_model": "step", "greater_is_better": True, "save_total_limit": 3}
    job = {**arguments(**chosen), "JOB_IMPROVES": "1"}
    run(tmp_path, undisturbed_trainer, "worker_1", "step@28", 25, **job)
    alone = tmp_path / "alone"
    alone.mkdir()
    environment = {**os.environ, **job, "JOB_ALONE": "1", "JOB_SAMPLES": "75"}
    command = [sys.executable, "-m", "tests.trainers.transformers_job"]
    subprocess.run(
        command, cwd=alone, env={**environment, "PYTHONPATH": str(Path(__file__).parents[2])}, check=True
    )
    assert len(folders(alone)) == 3
    for directory in (tmp_path, undisturbed_trainer(workers=2, **job).directory):
        assert folders(directory) == folders(alone)


def test_a_stream_that_begins_again_goes_on_in_its_pass(
    tmp_path: Path, undisturbed_trainer: Undisturbed
) -> None:
    job = {**arguments(max_steps=20), "JOB_STREAM": "60"}
    run(tmp_path, undisturbed_trainer, "worker_0", "step@18", 15, **job)


@pytest.mark.parametrize("where", ["behind its stop", "before it"])
def test_a_callback_stops_training_where_it_would_have(
    tmp_path: Path, undisturbed_trainer: Undisturbed, where: str
) -> None:
    chosen = {**EVALUATED, "learning_rate": 2.0, "num_train_epochs": 4, "eval_on_start": True}
    job = {**arguments(**chosen), "JOB_PATIENCE": "2"}
    ended = len(undisturbed_trainer(workers=2, **job).samples()[0])
    assert ended < 4 * 19
    held, plan = (f"end@{ended}", ended) if where == "behind its stop" else (f"step@{ended - 1}", ended - 5)
    run(tmp_path, undisturbed_trainer, "worker_0", held, plan, **job)


def test_data_that_draws_in_the_training_process_is_named(tmp_path: Path) -> None:
    with TransformersCluster(tmp_path, environment={"JOB_DRAWS": "1"}) as cluster:
        cluster.run()
        assert cluster.log("worker_0").count("event=data_draws_random") == 1
