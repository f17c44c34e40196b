"""Files of Lightning's loggers, cut back to where they were at a save."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs_package

pytestmark = pytest.mark.trainers


def csv_logger(directory: Path, version: int | None = None) -> Any:
    from lightning.pytorch.loggers import CSVLogger

    return CSVLogger(directory, version=version)


def log(logger: Any, *steps: int, name: str = "loss") -> None:
    for step in steps:
        logger.log_metrics({name: step / 2}, step)
    logger.save()


def text(directory: Path) -> str:
    [version] = (directory / "lightning_logs").iterdir()
    return (version / "metrics.csv").read_text()


@pytest.fixture
def taken(tmp_path: Path) -> list[dict[str, Any]]:
    """Of a logger that has gone on for three rows, of which one has a column of its own."""
    from recovery.lightning import logger_files

    logger = csv_logger(tmp_path)
    log(logger, 1, 2)
    saved = logger_files.take([logger])
    log(logger, 3, 4)
    log(logger, 4, name="val_loss")
    return saved


def test_a_csv_logger_goes_on_behind_the_rows_of_the_save(
    tmp_path: Path, taken: list[dict[str, Any]]
) -> None:
    from recovery.lightning import logger_files

    again = csv_logger(tmp_path)
    logger_files.put_back([again], taken)
    log(again, 3)
    log(again, 3, name="val_loss")
    assert text(tmp_path).splitlines() == ["loss,step,val_loss", "0.5,1,", "1.0,2,", "1.5,3,", ",3,1.5"]


def test_rows_that_a_process_had_laid_aside_when_it_died_are_there_for_the_next(
    tmp_path: Path, taken: list[dict[str, Any]]
) -> None:
    from recovery.lightning import logger_files

    [version] = (tmp_path / "lightning_logs").iterdir()
    (version / "metrics.csv").rename(version / ".metrics.csv.kept")
    again = csv_logger(tmp_path)
    logger_files.put_back([again], taken)
    again.save()
    assert [line.split(",")[:2] for line in text(tmp_path).splitlines()[1:]] == [["0.5", "1"], ["1.0", "2"]]


def test_a_logger_that_the_script_has_used_before_fit_stays_and_says_so(
    tmp_path: Path, taken: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    from recovery.lightning import logger_files

    again = csv_logger(tmp_path)
    log(again, 7)
    with caplog.at_level(logging.WARNING):
        logger_files.put_back([again], taken)
    assert again.version == 1
    assert "event=logger_begins_again" in caplog.text


def test_event_files_are_cut_and_later_ones_removed(tmp_path: Path) -> None:
    needs_package("tensorboard")
    from lightning.pytorch.loggers import TensorBoardLogger

    from recovery.lightning import logger_files
    from tests.trainers.test_trackers import tensorboard_of

    logger = TensorBoardLogger(tmp_path)
    log(logger, 1, 2)
    saved = logger_files.take([logger])
    log(logger, 3, 4)
    logger.finalize("failed")
    [first] = (tmp_path / "lightning_logs/version_0").glob("events*")
    shutil.copy(first, first.with_name(first.name + ".9"))
    again = TensorBoardLogger(tmp_path)
    logger_files.put_back([again], saved)
    log(again, 3)
    again.finalize("success")
    assert tensorboard_of(tmp_path / "lightning_logs")["loss"] == [(1, 0.5), (2, 1.0), (3, 1.5)]
