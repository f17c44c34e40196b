"""Do all ranks see one directory? Each leaves a note there, and sees those of all the others of its generation; nothing is believed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from recovery import clock, owner_files
from recovery.checkpoint.durable_files import reason_of
from recovery.errors import CheckpointError
from recovery.training.session import Session

PATIENCE_MS = 90_000
"""Network file systems show a new file of another host late, after a minute by default."""

_POLL_S = 0.05

_logger = logging.getLogger("recovery.training")


class Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The job and run that have written it."""

    job: str
    run: int
    generation: int
    world_size: int
    rank: int


_notes = msgspec.json.Decoder(Note)


class SharedDirectory:
    """One rank's note in a directory, and its look at those of the others."""

    def __init__(self, directory: Path, prefix: str, note: Note) -> None:
        """Nothing is written before `leave_note`.

        Args:
            directory: that all ranks should see.
            prefix: of the checkpoints' names, the same on all ranks.
            note: of this rank and generation.
        """
        self._directory, self._prefix, self._note = directory, prefix, note

    def leave_note(self) -> None:
        """Write this rank's note over that of an earlier generation.

        Raises:
            OSError: it cannot be written.
        """
        owner_files.write_over(self._path(self._note.rank), msgspec.json.encode(self._note))

    def await_others(self, check: Callable[[], None], patience_ms: int | None = None) -> None:
        """Wait until every rank's note of this generation is seen. Called when all ranks have begun.

        Args:
            check: called while it waits; what it raises passes through.
            patience_ms: how long the last one may take to be seen; None: `PATIENCE_MS`.

        Raises:
            CheckpointError: a note is not seen.
        """
        patience_ms = PATIENCE_MS if patience_ms is None else patience_ms
        began_ms = clock.monotonic_ms()
        while unseen := [rank for rank in range(self._note.world_size) if not self._sees(rank)]:
            check()
            waited_ms = clock.monotonic_ms() - began_ms
            if waited_ms >= patience_ms:
                raise CheckpointError(
                    "CHECKPOINT_NOT_SHARED",
                    directory=str(self._directory),
                    rank=self._note.rank,
                    unseen=unseen,
                    seconds=waited_ms // 1000,
                )
            time.sleep(_POLL_S)  # noqa: TID251 - no event tells that another host's file is seen here

    def remove_note(self) -> None:
        """Take this rank's note away, if it is still of this generation."""
        path = self._path(self._note.rank)
        try:
            if self._sees(self._note.rank):
                path.unlink(missing_ok=True)
        except OSError as error:
            _logger.warning("event=note_not_removed path=%s reason=%r", path, reason_of(error))

    def _sees(self, rank: int) -> bool:
        try:
            found = _notes.decode(self._path(rank).read_bytes())
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return False
        return found == msgspec.structs.replace(self._note, rank=rank)

    def _path(self, rank: int) -> Path:
        return self._directory / f".{self._prefix}.rank{rank}.here"


def note_in(directory: Path, prefix: str, session: Session) -> SharedDirectory:
    """Leave the note of a session there, until its generation ends."""
    note = Note(
        job=session.job,
        run=session.run,
        generation=session.generation,
        world_size=session.world_size,
        rank=session.rank,
    )
    noted = SharedDirectory(directory, prefix, note)
    noted.leave_note()
    session.on_generation_end(noted.remove_note)
    return noted
