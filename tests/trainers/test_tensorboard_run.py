"""The TensorBoard files of transformers' Trainer, over generations and beside those of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs_package
from tests.torch.fake_session import FakeSession

pytestmark = pytest.mark.trainers


class Entry(FakeSession):
    job, run = "a job", 1


@pytest.mark.parametrize(
    ("generation", "owner", "shown"),
    [
        (1, "", [1, 2, 3, 4, 5]),
        # The one before has ended before it logged anything.
        (2, "", [1, 2, 3, 4, 5]),
        (2, ".another job-1", [1, 2, 3, 4, 5]),
        (2, ".a job-1", [1, 2]),
    ],
)
def test_only_what_a_generation_before_has_logged_counts_no_more(
    tmp_path: Path, generation: int, owner: str, shown: list[int]
) -> None:
    needs_package("tensorboard")
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations import TensorBoardCallback

    from recovery.transformers.trainer import go_on_in_tensorboard
    from tests.trainers.test_trackers import tensorboard_of

    run = tmp_path / "run"
    # TensorBoard reads the files of a directory in the order of their names, which begin with the second.
    earlier = SummaryWriter(run, filename_suffix=owner)
    for step in range(1, 6):
        earlier.add_scalar("loss", step, step)
    earlier.close()
    [file] = run.iterdir()
    file.rename(file.with_name(file.name.replace(file.name.split(".")[3], "0000000001")))
    callback = TensorBoardCallback()
    callback.logging_dir = str(run)
    session: Any = Entry(generation=generation)
    go_on_in_tensorboard([callback], session, "", 3)
    callback._SummaryWriter(log_dir=str(run)).close()
    assert [step for step, _ in tensorboard_of(tmp_path)["loss"]] == shown


def test_in_a_folder_of_its_own_a_run_purges_what_an_earlier_release_has_written(tmp_path: Path) -> None:
    needs_package("tensorboard")
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations import TensorBoardCallback

    from recovery.transformers import trainer
    from tests.trainers.test_trackers import tensorboard_of

    run = tmp_path / "runs/a job-1"
    earlier = SummaryWriter(run)
    for step in range(1, 6):
        earlier.add_scalar("loss", step, step)
    earlier.close()
    [file] = run.iterdir()
    file.rename(file.with_name(file.name.replace(file.name.split(".")[3], "0000000001")))
    callback = TensorBoardCallback()
    callback.logging_dir = None
    session: Any = Entry(generation=2)
    trainer.go_on_in_tensorboard([callback], session, str(tmp_path), 3)
    callback._SummaryWriter(log_dir=callback.logging_dir).close()
    assert [step for step, _ in tensorboard_of(tmp_path / "runs")["loss"]] == [1, 2]


def test_a_tracker_hides_nothing_of_another_program_in_its_directory(tmp_path: Path) -> None:
    needs_package("tensorboard")
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
    from torch.utils.tensorboard import SummaryWriter

    from recovery.training import tracker_tensorboard
    from recovery.training.tracker import Row, TrackedRun

    for theirs in (tmp_path, tmp_path / "theirs"):
        with SummaryWriter(theirs) as writer:
            for step in range(1, 6):
                writer.add_scalar("loss", step, step)
    for generation, behind in ((1, 0), (2, 1)):
        run = TrackedRun("job-1", "job", 1, generation, behind)
        ours = tracker_tensorboard.begin(run, directory=tmp_path)
        ours.log([Row(step, {"loss": 1.0}, 0) for step in range(behind + 1, 4)])
        ours.close(finished=False)
    shown = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    steps = {name: [one.step for one in shown.Scalars(name, "loss")] for name in shown.Runs()}
    assert steps == {".": [1, 2, 3, 4, 5], "theirs": [1, 2, 3, 4, 5], "job-1": [1, 2, 3]}
