"""The trainers' own loggers over a rollback: one run, and in it each step once, with the values of a training that nothing happens to."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from tests.cluster.undisturbed import Undisturbed, undisturbed_runs
from tests.needs import needs_package
from tests.trainers.lightning_cluster import LightningCluster
from tests.trainers.test_trackers import tensorboard_of
from tests.trainers.transformers_cluster import TransformersCluster, arguments, killed, undisturbed_trainer

pytestmark = [pytest.mark.trainers, pytest.mark.cluster]
__all__ = ["undisturbed_trainer"]

_OF_THE_PROCESS = ("runtime", "per_second", "train/train_loss", "total_flos", "hp_metric")


@pytest.fixture(scope="session")
def undisturbed_lightning(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Trainings that nothing happens to."""
    return undisturbed_runs(LightningCluster, tmp_path_factory)


def curves_of(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of the one run, but for what is of a process and not of its training."""
    found = tensorboard_of(directory)
    return {tag: points for tag, points in found.items() if not any(part in tag for part in _OF_THE_PROCESS)}


@pytest.mark.parametrize("rank", [0, 1], ids=["the rank that logs", "another"])
def test_lightnings_loggers_go_on_in_their_version(
    tmp_path: Path, undisturbed_lightning: Undisturbed, rank: int
) -> None:
    needs_package("tensorboard")
    # Step 25 is validated and saved: that, and the batch behind it, which is made again, are logged under one number.
    environment = {"JOB_BOARDS": "1", "JOB_VAL_EVERY": "0.5"}
    kills = {"JOB_KILLS": f"{rank}:step:8:5 {rank}:step:28:25"}
    with LightningCluster(tmp_path, workers=2, environment={**environment, **kills}) as cluster:
        assert cluster.run_with_deaths() == 2
        undisturbed = cast("LightningCluster", undisturbed_lightning(workers=2, **environment))
        cluster.check_fit_like(undisturbed)
        for directory in ("logs", "boards"):
            assert [path.name for path in (tmp_path / directory / "lightning_logs").iterdir()] == [
                "version_0"
            ]
        found, expected = (
            curves_of(one.directory / "boards/lightning_logs") for one in (cluster, undisturbed)
        )
        assert {"train_loss_step", "train_loss_epoch", "val_loss"} <= found.keys()
        assert found == expected


@pytest.mark.parametrize("rank", [0, 1], ids=["the rank that logs", "another"])
def test_lightnings_loggers_say_what_a_death_before_the_first_save_leaves(tmp_path: Path, rank: int) -> None:
    needs_package("tensorboard")
    environment = {"JOB_BOARDS": "1", "JOB_KILLS": f"{rank}:step:3", "JOB_EPOCHS": "1"}
    with LightningCluster(tmp_path, workers=2, environment=environment) as cluster:
        assert cluster.run_with_deaths() == 1
        said = "".join(cluster.log(name) for name in cluster.names)
        for directory in ("logs", "boards"):
            logged = Path(directory) / "lightning_logs"
            assert sorted(path.name for path in (tmp_path / logged).iterdir()) == ["version_0", "version_1"]
            assert said.count(f"event=logger_begins_again directory={logged}/version_1 reason='no save") == 1


@pytest.mark.parametrize("victim", ["worker_0", "worker_1"])
def test_the_tensorboard_of_transformers_trainer_has_each_step_once_in_one_run(
    tmp_path: Path, undisturbed_trainer: Undisturbed, victim: str
) -> None:
    needs_package("tensorboard")
    chosen = {"eval_strategy": "steps", "eval_steps": 5, "eval_on_start": True, "logging_steps": 1}
    job = arguments(report_to=["tensorboard"], **chosen)
    with TransformersCluster(tmp_path, environment={**job, "JOB_HELD": "step@13"}) as cluster:
        killed(cluster, undisturbed_trainer, victim, 10, **job)
        both = (tmp_path, undisturbed_trainer(workers=2, **job).directory)
        found, expected = (curves_of(directory / "out/runs") for directory in both)
        assert {"train/loss", "eval/loss"} <= found.keys()
        assert found == expected
