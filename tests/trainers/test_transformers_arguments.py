"""What of TrainingArguments cannot be as it is where a rollback may come, and a Trainer outside of recovery."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recovery.checkpoint import catalogue
from recovery.checkpoint.retention import Retention, Rule
from recovery.errors import UsageError
from tests.checkpoint.test_folders import adopted, written

pytestmark = pytest.mark.trainers


def chosen(directory: Path, **more: Any) -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(output_dir=str(directory), use_cpu=True, report_to="none", **more)


@pytest.mark.parametrize("name", ["save_only_model", "ignore_data_skip", "enable_jit_checkpoint"])
def test_what_no_rollback_is_exact_with_is_refused_by_name(tmp_path: Path, name: str) -> None:
    from recovery.transformers import training_arguments

    training_arguments.check(chosen(tmp_path))
    with pytest.raises(UsageError, match=f"{name}=True"):
        training_arguments.check(chosen(tmp_path, **{name: True}))


def test_batches_that_rank_0_reads_for_all_are_refused_unless_it_splits_them(tmp_path: Path) -> None:
    from recovery.transformers import training_arguments

    with pytest.raises(UsageError, match="dispatch_batches=True"):
        training_arguments.check(chosen(tmp_path, accelerator_config={"dispatch_batches": True}))
    split = {"dispatch_batches": True, "split_batches": True}
    training_arguments.check(chosen(tmp_path, accelerator_config=split))


@pytest.mark.parametrize(("limit", "kept"), [(None, None), (1, 2), (2, 2), (5, 5)])
def test_the_limit_of_folders_is_taken_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: int | None, kept: int | None
) -> None:
    from recovery.transformers import training_arguments

    arguments = chosen(tmp_path, save_total_limit=limit)
    with caplog.at_level(logging.WARNING):
        assert training_arguments.take_limit(arguments) == kept
    assert arguments.save_total_limit is None
    assert ("save_total_limit_raised" in caplog.text) == (limit == 1)


def test_a_training_that_begins_takes_no_folder_of_which_nobody_knows_whose_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from recovery.transformers.training_arguments import beginning

    arguments = chosen(tmp_path / "out")
    elsewhere = str(tmp_path / "earlier/checkpoint-7")
    assert beginning(arguments, None, is_first=True) is None
    assert beginning(arguments, True, is_first=True) is None
    assert beginning(arguments, elsewhere, is_first=True) == elsewhere

    inside = tmp_path / "out/checkpoint-5"
    inside.mkdir(parents=True)
    for asked in (True, str(inside)):
        with pytest.raises(UsageError, match="checkpoint-5"):
            beginning(arguments, asked, is_first=True)
        assert beginning(arguments, asked, is_first=False) is None
    assert caplog.text.count("event=folder_not_taken") == 2


def test_a_folder_that_another_names_as_its_best_model_stays(tmp_path: Path) -> None:
    from recovery.transformers.step_callback import is_best

    # A rollback may go to 20, whose best model is an older one than that of 25.
    for step, best in ((5, 5), (10, 5), (20, 5), (25, 25)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        named = {"best_model_checkpoint": f"out/checkpoint-{best}"}
        (folder / "trainer_state.json").write_text(json.dumps(named))
    (tmp_path / "checkpoint-30").mkdir()
    (tmp_path / "checkpoint-30/trainer_state.json").write_text("{")
    kept = {step for step in (5, 10, 20, 25, 30) if is_best(tmp_path / f"checkpoint-{step}")}
    assert kept == {5}


@pytest.mark.parametrize(
    ("best_of", "left"),
    [
        (lambda step: step, {30, 35, 40}),
        (lambda step: 10 if step >= 10 else 5, {10, 30, 35, 40}),
        (lambda step: step - step % 10 or 5, {30, 35, 40}),
    ],
)
def test_the_limit_of_folders_holds_while_the_evaluation_improves(
    tmp_path: Path, best_of: Callable[[int], int], left: set[int]
) -> None:
    from recovery.transformers.step_callback import is_best

    def steps() -> list[int]:
        return sorted(int(folder.name.partition("-")[2]) for folder in tmp_path.iterdir() if folder.is_dir())

    retention = Retention(
        lambda: catalogue.list_directory(tmp_path, catalogue.FOLDERS, job="job-a", run=1, rank=0),
        Rule(keep_checkpoint_max=3, keep_checkpoint_per_n_minutes=0),
        is_best,
        rank=0,
    )
    for step in range(5, 45, 5):
        named = {"best_model_checkpoint": f"out/checkpoint-{best_of(step)}"}
        folder = written(tmp_path / f"checkpoint-{step}", {"trainer_state.json": json.dumps(named).encode()})
        adopted(folder, step=step)
        retention.apply(previous_durable_step=step - 5)
        assert len(steps()) <= 4
    assert set(steps()) == left


def test_outside_of_recovery_the_trainer_is_transformers_own(tmp_path: Path) -> None:
    from recovery.transformers import Trainer
    from tests.trainers.tiny_training import Net, Samples

    arguments = chosen(
        tmp_path / "out", max_steps=4, save_steps=1, save_total_limit=1, disable_tqdm=True, logging_steps=1
    )
    trainer = Trainer(model=Net(), args=arguments, train_dataset=Samples(40))
    trainer.train()
    trainer.train(resume_from_checkpoint=True)
    # Its limit is kept, and so is its one step too many: fact 4 of recovery/transformers/trainer.py.
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["checkpoint-5"]
