"""What Lightning's own loggers had written at a save, and that again where training goes back to it: one version, each step in it once.

Lightning numbers what it logs of a batch as it numbers what it logged behind the batch before, so that no step says what a rollback takes
back: the files do. TensorBoardLogger appends to event files; CSVLogger to one file, which it writes again when a column is added.

Other programs, and other runs, may write in the same directories: event files are known by their suffix, rows by where they are and by the last one.
"""

from __future__ import annotations

import csv
import itertools
import logging
import os
import warnings
from pathlib import Path
from typing import Any

from lightning.fabric.utilities import rank_zero
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torchmetrics.utilities import prints

from recovery.training import framework_hooks
from recovery.training.session import Session

_logger = logging.getLogger("recovery.lightning")
_EVENTS = "events.out.tfevents.*"
_NOT_OF_A_SAVE = "no save of this run says that its rows are of this run"
_FROM_ITS_START = "no save was committed yet, so training begins at its first step: what this run has logged of it stays in an earlier version"


def _note_rank(session: Session) -> None:
    """Only rank 0 logs. Lightning and torchmetrics have read the rank from the environment when they were imported; a standby had none then."""
    rank_zero.rank_zero_only.rank = prints.rank_zero_only.rank = session.rank


framework_hooks.on_entry(_note_rank)


def owner_of(session: Session) -> str:
    """Name the run that writes, as the end of a file's name."""
    return f".{session.job[:12]}-{session.run}"


def take(loggers: list[Any], owner: str) -> list[dict[str, Any]]:
    """Say where each stands. Empty: it has written nothing here, or is none of these two.

    Args:
        loggers: of the Trainer.
        owner: as of `put_back`.
    """
    return [_taken(logger, owner) for logger in loggers]


def put_back(
    loggers: list[Any], saved: list[dict[str, Any]], owner: str, *, is_rollback: bool = False
) -> None:
    """Have each go on there, before anything is logged.

    Args:
        loggers: of the Trainer, in the order of the save.
        saved: as `take` gave it; empty: training begins.
        owner: names this run of this job: nothing that another has written is touched.
        is_rollback: the run has trained before, with or without a save.
    """
    for logger, was in zip(loggers, [*saved, *({} for _ in loggers)], strict=False):
        # Of Lightning 2.6: what its property makes when it is asked.
        is_used = getattr(logger, "_experiment", None) is not None
        if isinstance(logger, TensorBoardLogger) and not is_used:
            suffix = str(logger._kwargs.get("filename_suffix", ""))  # noqa: SLF001 - there is no public way
            logger._kwargs["filename_suffix"] = f"{suffix.removesuffix(owner)}{owner}"  # noqa: SLF001 - as above
        if not was:
            if not is_used:
                _keep_rows(logger, _NOT_OF_A_SAVE)
            if is_rollback and not saved:
                _begin_again(logger, owner, is_used=is_used)
            continue
        before = logger._version  # noqa: SLF001 - as above
        reason = "the script has used it before fit" if is_used else _go_there(logger, was, owner)
        if reason:
            logger._version = before  # noqa: SLF001 - as above
            _say_begins_again(logger, reason)
            if not is_used:
                _keep_rows(logger, reason)
        elif "files" in was:
            _cut_events(Path(logger.log_dir), was["files"], owner)
        else:
            _cut_rows(logger, was["rows"])


def _begin_again(logger: Any, owner: str, *, is_used: bool) -> None:
    """Training goes back to before its first save, where nothing says which version it had."""
    if not _is_known(logger) or rank_zero.rank_zero_only.rank or "://" in str(logger.log_dir):
        return
    if isinstance(logger, TensorBoardLogger) and not is_used:
        # In a version that the script names lie the files of the steps that are made again.
        _cut_events(Path(logger.log_dir), {}, owner)
    if isinstance(logger.version, int) and logger.version and not Path(logger.log_dir).exists():
        _say_begins_again(logger, _FROM_ITS_START)


def _say_begins_again(logger: Any, reason: str) -> None:
    _logger.warning("event=logger_begins_again directory=%s reason='%s'", logger.log_dir, reason)


def _is_known(logger: Any) -> bool:
    return isinstance(logger, (TensorBoardLogger, CSVLogger))


def _go_there(logger: Any, was: dict[str, Any], owner: str) -> str:
    """Have it log in the version that it had. Gives why that is not where it has logged; empty: it is."""
    if was.get("owner") != owner:
        return "what it had logged at the save is of another job, of another run or of an earlier release"
    logger._version = was["version"]  # noqa: SLF001 - there is no public way
    if _directory_of(logger) != was["directory"]:
        return f"the script has it log elsewhere than at the save, which was in {was['directory']}"
    rows = _rows(_csv_of(logger)) if "rows" in was else []
    if rows and _last(rows, was["rows"]) != was["last"]:
        return f"{_csv_of(logger)} does not hold the rows of the save"
    return ""


def _taken(logger: Any, owner: str) -> dict[str, Any]:
    if not _is_known(logger) or logger._experiment is None or "://" in str(logger.log_dir):  # noqa: SLF001 - as above
        return {}
    # What a callback has logged by itself may still be in memory.
    logger.save()
    said = {"version": logger.version, "owner": owner, "directory": _directory_of(logger)}
    if isinstance(logger, CSVLogger):
        rows = _rows(_csv_of(logger))
        count = max(0, len(rows) - 1)
        return {**said, "rows": count, "last": _last(rows, count)}
    directory = Path(logger.log_dir)
    return {**said, "files": {name: _size(directory / name) for name in _events(directory, owner)}}


def _directory_of(logger: Any) -> str:
    return str(Path(logger.log_dir).absolute())


def _events(directory: Path, owner: str) -> list[str]:
    """With those in folders of its own, as of `add_scalars`."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob(f"{_EVENTS}{owner}"))


def _size(path: Path) -> int:
    return path.stat().st_size


def _cut_events(directory: Path, sizes: dict[str, int], owner: str) -> None:
    for name in _events(directory, owner):
        path = directory / name
        if name not in sizes:
            path.unlink()
        elif sizes[name] < _size(path):
            os.truncate(path, sizes[name])


def _csv_of(logger: CSVLogger) -> Path:
    return Path(logger.log_dir) / "metrics.csv"


def _keep_rows(logger: Any, reason: str) -> None:
    """Put away the rows that lie where a logger begins: CSVLogger would remove them."""
    if not isinstance(logger, CSVLogger) or rank_zero.rank_zero_only.rank or "://" in str(logger.log_dir):
        return
    path = _csv_of(logger)
    if not path.is_file():
        return
    kept = next(
        place
        for number in itertools.count(1)
        if not os.path.lexists(place := path.with_name(f"metrics.kept-{number}.csv"))
    )
    path.rename(kept)
    _logger.warning("event=logger_rows_kept path=%s reason='%s'", kept, reason)
    _opened(logger)


def _opened(logger: CSVLogger) -> Any:
    """Its writer, which would warn that it deletes what lies there: that was put away."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Experiment logs directory .* exists and is not empty")
        return logger.experiment


def _rows(path: Path) -> list[list[str]]:
    """The first one names the columns."""
    try:
        with path.open(newline="") as file:
            return list(csv.reader(file))
    except FileNotFoundError:
        return []


def _last(rows: list[list[str]], count: int) -> dict[str, str]:
    """Of so many rows the last one, whichever columns were added since; empty: there is none."""
    if not 0 < count < len(rows):
        return {}
    return {name: value for name, value in zip(rows[0], rows[count], strict=False) if value}


def _cut_rows(logger: CSVLogger, count: int) -> None:
    """CSVLogger removes the file that it finds: meanwhile it lies beside it, also for whoever comes if this process ends there."""
    path = _csv_of(logger)
    if not count:
        # Nor is there a last row by which they would be known.
        _keep_rows(logger, _NOT_OF_A_SAVE)
    aside = path.with_name(".metrics.csv.kept")
    rows = (_rows(path) or _rows(aside))[: count + 1]
    staged = path.with_name(".metrics.csv.new")
    with staged.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    staged.replace(aside)
    path.unlink(missing_ok=True)
    experiment = _opened(logger)
    if rows:
        aside.replace(path)
        experiment.metrics_keys = rows[0]
    else:
        aside.unlink()
