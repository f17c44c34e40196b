"""Files of Lightning's loggers, cut back to where they were at a save."""

from __future__ import annotations

import logging
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs_package

pytestmark = pytest.mark.trainers

OWNER = ".job-1"


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
    saved = logger_files.take([logger], OWNER)
    log(logger, 3, 4)
    log(logger, 4, name="val_loss")
    return saved


def test_a_csv_logger_goes_on_behind_the_rows_of_the_save(
    tmp_path: Path, taken: list[dict[str, Any]]
) -> None:
    from recovery.lightning import logger_files

    again = csv_logger(tmp_path)
    logger_files.put_back([again], taken, OWNER)
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
    logger_files.put_back([again], taken, OWNER)
    again.save()
    assert [line.split(",")[:2] for line in text(tmp_path).splitlines()[1:]] == [["0.5", "1"], ["1.0", "2"]]


def test_a_logger_that_the_script_has_used_before_fit_stays_and_says_so(
    tmp_path: Path, taken: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    from recovery.lightning import logger_files

    again = csv_logger(tmp_path)
    log(again, 7)
    with caplog.at_level(logging.WARNING):
        logger_files.put_back([again], taken, OWNER)
    assert again.version == 1
    assert "event=logger_begins_again" in caplog.text


def rows_of_another_program(directory: Path) -> str:
    """Of a logger whose script names its version."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log(csv_logger(directory, version=7), 5, 6, 7)
    return (directory / "lightning_logs/version_7/metrics.csv").read_text()


def kept(directory: Path) -> dict[str, str]:
    return {
        path.name: path.read_text() for path in (directory / "lightning_logs/version_7").glob("*kept-*.csv")
    }


@pytest.mark.parametrize("saved", ["nothing", "of another run", "before its first row"])
def test_rows_of_another_program_where_a_logger_begins_are_kept_beside_it(
    tmp_path: Path, saved: str, caplog: pytest.LogCaptureFixture
) -> None:
    from recovery.lightning import logger_files

    logger = csv_logger(tmp_path, version=7)
    assert logger.experiment
    was = logger_files.take([logger], ".another-1" if saved == "of another run" else OWNER)
    found = {}
    for number in (1, 2):
        found[f"metrics.kept-{number}.csv"] = rows_of_another_program(tmp_path)
        again = csv_logger(tmp_path, version=7)
        with caplog.at_level(logging.WARNING):
            logger_files.put_back([again], [] if saved == "nothing" else was, OWNER)
        assert (
            f"event=logger_rows_kept path={tmp_path}/lightning_logs/version_7/metrics.kept-{number}.csv"
            in caplog.text
        )
        log(again, 1)
        assert text(tmp_path).splitlines() == ["loss,step", "0.5,1"]
        (tmp_path / "lightning_logs/version_7/metrics.csv").unlink()
        assert kept(tmp_path) == found


def test_another_rank_than_the_one_that_logs_puts_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning.fabric.utilities import rank_zero

    from recovery.lightning import logger_files

    rows = rows_of_another_program(tmp_path)
    monkeypatch.setattr(rank_zero.rank_zero_only, "rank", 1)
    logger_files.put_back([csv_logger(tmp_path, version=7)], [], OWNER)
    assert (text(tmp_path), kept(tmp_path)) == (rows, {})


def tensorboard_logger(directory: Path, *saved: dict[str, Any], owner: str = OWNER, **options: Any) -> Any:
    """As a generation makes it."""
    needs_package("tensorboard")
    from lightning.pytorch.loggers import TensorBoardLogger

    from recovery.lightning import logger_files

    logger = TensorBoardLogger(directory, **options)
    logger_files.put_back([logger], list(saved), owner)
    return logger


def test_event_files_are_cut_and_later_ones_removed(tmp_path: Path) -> None:
    from recovery.lightning import logger_files

    logger = tensorboard_logger(tmp_path, filename_suffix=".theirs")
    log(logger, 1, 2)
    [saved] = logger_files.take([logger], OWNER)
    log(logger, 3, 4)
    logger.experiment.add_scalars("both", {"a": 1.0}, 4)
    logger.finalize("failed")
    [first] = (tmp_path / "lightning_logs/version_0").glob("events*")
    assert first.name.endswith(f".theirs{OWNER}")
    shutil.copy(first, first.with_name(f"{first.name}{OWNER}"))
    again = tensorboard_logger(tmp_path, saved, filename_suffix=".theirs")
    assert [first] == list(tmp_path.rglob("events*"))
    log(again, 3)
    again.finalize("success")
    from tests.trainers.test_trackers import tensorboard_of

    assert tensorboard_of(tmp_path / "lightning_logs")["loss"] == [(1, 0.5), (2, 1.0), (3, 1.5)]


def test_a_run_that_begins_again_takes_its_event_files_from_the_version_that_its_script_names(
    tmp_path: Path,
) -> None:
    from recovery.lightning import logger_files

    theirs = tensorboard_logger(tmp_path, owner=".another-1", version=7)
    log(theirs, 9)
    log(tensorboard_logger(tmp_path, version=7), 1, 2)
    again = tensorboard_logger(tmp_path, version=7)
    logger_files.put_back([again], [], OWNER, is_rollback=True)
    log(again, 1)
    files = [path.name for path in (tmp_path / "lightning_logs/version_7").glob("events*")]
    assert sorted(name.rpartition(".")[2] for name in files) == ["another-1", "job-1"]


def test_event_files_that_another_has_written_below_stay_as_they_are(tmp_path: Path) -> None:
    from recovery.lightning import logger_files

    logger = tensorboard_logger(tmp_path, name="", version="")
    theirs = tensorboard_logger(tmp_path, owner=".another-1")
    for one in (logger, theirs):
        log(one, 1)
    [saved] = logger_files.take([logger], OWNER)
    log(theirs, 2)
    log(tensorboard_logger(tmp_path, owner=".another-1"), 1)
    was = {path: path.read_bytes() for path in (tmp_path / "lightning_logs").rglob("events*")}
    tensorboard_logger(tmp_path, saved, name="", version="")
    assert {path: path.read_bytes() for path in (tmp_path / "lightning_logs").rglob("events*")} == was
    assert len(was) == 2


@pytest.mark.parametrize("rows", [0, 2])
def test_a_logger_that_the_script_has_log_elsewhere_touches_nothing_there(
    tmp_path: Path, rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    from recovery.lightning import logger_files

    logger, elsewhere = csv_logger(tmp_path), csv_logger(tmp_path / "elsewhere")
    log(elsewhere, 1, 2, 3, 4)
    assert logger.experiment
    log(logger, *range(rows))
    saved = logger_files.take([logger], OWNER)
    again = csv_logger(tmp_path / "elsewhere")
    logger_files.put_back([again], saved, OWNER)
    assert again.version == 1
    assert len(text(tmp_path / "elsewhere").splitlines()) == 5
    assert "event=logger_begins_again" in caplog.text


def test_rows_that_are_none_of_the_saves_stay(tmp_path: Path, taken: list[dict[str, Any]]) -> None:
    from recovery.lightning import logger_files

    shutil.rmtree(tmp_path / "lightning_logs")
    log(csv_logger(tmp_path), 5, 6, 7, 8)
    again = csv_logger(tmp_path)
    logger_files.put_back([again], taken, OWNER)
    assert again.version == 1
    assert len(text(tmp_path).splitlines()) == 5


def test_rows_of_another_run_stay(tmp_path: Path, taken: list[dict[str, Any]]) -> None:
    from recovery.lightning import logger_files

    was = text(tmp_path)
    again = csv_logger(tmp_path)
    logger_files.put_back([again], taken, ".job-2")
    assert again.version == 1
    assert text(tmp_path) == was
