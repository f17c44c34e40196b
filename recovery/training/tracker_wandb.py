"""Weights & Biases, offline: rows lie in a file of their own, which a rollback cuts, and become one offline run when training is over.

An offline run is sent by `wandb sync` afterwards, and takes nothing back: what it were given at once would hold steps twice, and a killed process
takes along what its writer has not written. So nothing of it exists before every row is one that counts.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec
import wandb

from recovery import owner_files
from recovery.core.converter import UNREADABLE
from recovery.training.tracker import Row, TrackedRun

_logger = logging.getLogger("recovery.training")
_SUPERSEDED = "superseded"
_row = msgspec.json.Decoder(Row)


class _Rows:
    """The rows of a run, behind a rollback."""

    def __init__(self, path: Path, run: TrackedRun, directory: Path, settings: dict[str, str | None]) -> None:
        self._path, self._run, self._directory, self._settings = path, run, directory, settings
        kept = [row for row in _read(path) if row.step <= run.step]
        owner_files.write_over(path, _lines(kept))
        self._file = path.open("ab", buffering=0)

    def log(self, rows: list[Row]) -> None:
        owner_files.append_whole(self._file, _lines(rows))

    def close(self, *, finished: bool) -> None:
        self._file.close()
        if finished:
            self._write()

    def _write(self) -> None:
        """Make the offline run. One that is there was written before the job went on from an earlier step."""
        for earlier in (self._directory / "wandb").glob(f"offline-run-*-{self._run.key}"):
            aside = self._directory / "wandb" / _SUPERSEDED
            aside.mkdir(exist_ok=True)
            earlier.rename(aside / earlier.name)
        quiet = wandb.Settings(console="off", silent=True, disable_git=True, x_disable_stats=True)
        facts = {"recovery_job": self._run.job, "recovery_generations": self._run.generation}
        # From here on the rank is done; the run's files are complete when `finish` returns.
        with wandb.init(
            mode="offline",
            id=self._run.key,
            dir=self._directory,
            config=facts,
            settings=quiet,
            **self._settings,
        ) as made:
            for row in _read(self._path):
                made.log({**row.values, "_timestamp": row.wall_ms / 1000}, step=row.step)
        wandb.teardown()


def begin(
    run: TrackedRun,
    *,
    directory: str | os.PathLike[str] = ".",
    project: str | None = None,
    name: str | None = None,
) -> _Rows:
    """Go on with the rows of the run.

    Args:
        run: of the job.
        directory: where the rows lie, and `wandb/offline-run-*` in the end; one that every host sees which may take the rank.
        project: as wandb.init.
        name: likewise; None: the job's.
    """
    folder = Path(directory).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return _Rows(
        folder / f"wandb-{run.key}.jsonl", run, folder, {"project": project, "name": name or run.key}
    )


def _read(path: Path) -> list[Row]:
    """The rows that are there; a last one that was cut off with its process is none."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    rows = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            rows.append(_row.decode(line))
        except UNREADABLE as error:
            # Of a release that took a part that a full disk had taken for the whole.
            _logger.warning("event=row_not_read path=%s line=%d %s", path, number, error)
    return rows


def _lines(rows: list[Row]) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
