"""What Lightning's own loggers had written at a save, and that again where training goes back to it: one version, each step in it once.

Lightning numbers what it logs of a batch as it numbers what it logged behind the batch before, so that no step says what a rollback takes
back: the files do. TensorBoardLogger appends to event files; CSVLogger to one file, which it writes again when a column is added.
"""

from __future__ import annotations

import csv
import logging
import os
import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

_logger = logging.getLogger("recovery.lightning")
_EVENTS = "events.out.tfevents.*"


def take(loggers: list[Any]) -> list[dict[str, Any]]:
    """Say where each stands. Empty: it has written nothing here, or is none of these two.

    Args:
        loggers: of the Trainer.
    """
    return [_taken(logger) for logger in loggers]


def put_back(loggers: list[Any], saved: list[dict[str, Any]]) -> None:
    """Have each go on there, before anything is logged.

    Args:
        loggers: of the Trainer, in the order of the save.
        saved: as `take` gave it.
    """
    for logger, was in zip(loggers, saved, strict=False):
        if not was:
            continue
        if logger._experiment is not None:  # noqa: SLF001 - of Lightning 2.6: what its property makes when it is asked
            _logger.warning(
                "event=logger_begins_again directory=%s reason='the script has used it before fit'",
                logger.log_dir,
            )
            continue
        logger._version = was["version"]  # noqa: SLF001 - there is no public way
        if "files" in was:
            _cut_events(Path(logger.log_dir), was["files"])
        else:
            _cut_rows(logger, was["rows"])


def _taken(logger: Any) -> dict[str, Any]:
    known = isinstance(logger, (TensorBoardLogger, CSVLogger))
    if not known or logger._experiment is None or "://" in str(logger.log_dir):  # noqa: SLF001 - as above
        return {}
    # What a callback has logged by itself may still be in memory.
    logger.save()
    directory = Path(logger.log_dir)
    if isinstance(logger, CSVLogger):
        return {"version": logger.version, "rows": max(0, len(_rows(_csv_of(logger))) - 1)}
    return {
        "version": logger.version,
        "files": {name: _size(directory / name) for name in _events(directory)},
    }


def _events(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob(_EVENTS))


def _size(path: Path) -> int:
    return path.stat().st_size


def _cut_events(directory: Path, sizes: dict[str, int]) -> None:
    for name in _events(directory):
        path = directory / name
        if name not in sizes:
            path.unlink()
        elif sizes[name] < _size(path):
            os.truncate(path, sizes[name])


def _csv_of(logger: CSVLogger) -> Path:
    return Path(logger.log_dir) / "metrics.csv"


def _rows(path: Path) -> list[list[str]]:
    """The first one names the columns."""
    try:
        with path.open(newline="") as file:
            return list(csv.reader(file))
    except FileNotFoundError:
        return []


def _cut_rows(logger: CSVLogger, count: int) -> None:
    """CSVLogger removes the file that it finds: meanwhile it lies beside it, also for whoever comes if this process ends there."""
    path = _csv_of(logger)
    aside = path.with_name(".metrics.csv.kept")
    rows = (_rows(path) or _rows(aside))[: count + 1]
    staged = path.with_name(".metrics.csv.new")
    with staged.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    staged.replace(aside)
    path.unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Experiment logs directory .* exists and is not empty")
        experiment = logger.experiment
    if rows:
        aside.replace(path)
        experiment.metrics_keys = rows[0]
    else:
        aside.unlink()
