"""`GET /history`: what has happened in the job, as the live page draws it (`recovery open --connect`)."""

from __future__ import annotations

import importlib
from pathlib import Path

import msgspec

from recovery import clock
from recovery.errors import RecoveryError
from recovery.scheduler.past_reader import PastReader

_MAKER = "recovery.report.page_history"
_PAUSE_MS = 2_000
"""Between two readings: somebody watches."""
_JSON = "application/json"


class HistoryPage:
    """Of one scheduler."""

    def __init__(self, recovery_path: Path | None) -> None:
        """Nobody has asked yet; `recovery_path` has the files, None: nothing of the past is kept."""
        self._path, self._body = recovery_path, b""
        self._past = PastReader("history", self._read, pause_ms=_PAUSE_MS)

    async def answer(self, _: str) -> tuple[bytes, str]:
        """Body and content type. Called in the scheduler's loop."""
        if self._path is None:
            return _told(
                "this scheduler keeps no files: MS_ENABLE_RECOVERY and MS_RECOVERY_PATH are not set"
            ), _JSON
        await self._past.refresh()
        return self._body or _told("the scheduler's files are not read yet"), _JSON

    def _read(self) -> None:
        assert self._path is not None, "else nothing is read"
        try:
            self._body = msgspec.json.encode(
                importlib.import_module(_MAKER).history_of_path(self._path, clock.wall_ms())
            )
        except (RecoveryError, OSError) as error:
            self._body = _told(str(error))
            raise


def _told(why: str) -> bytes:
    return msgspec.json.encode({"error": why})
