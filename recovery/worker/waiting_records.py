"""What waits for a worker's store that is not open yet: of each key the newest row, and no more of a kind than the store itself would keep."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable

from recovery.core.policy.history import KEPT, History
from recovery.core.records import CheckpointRecord, DirectoryRecord, GenerationRecord, Record
from recovery.core.tiers import tier_of

_logger = logging.getLogger("recovery.worker")
_KEPT = KEPT[History.OWN_SAVES]


class WaitingRecords:
    """Rows by kind and key. One thread at a time may call any method."""

    def __init__(self) -> None:
        """Nothing waits."""
        self._kinds: defaultdict[object, dict[object, Record]] = defaultdict(dict)
        self._is_whole = True

    def __bool__(self) -> bool:
        """Whether anything does."""
        return any(self._kinds.values())

    def keep(self, records: Iterable[Record]) -> None:
        """Of one key the last one counts; of a kind the oldest go."""
        for record in records:
            of_kind = self._kinds[_kind(record)]
            # The newest is last.
            of_kind.pop(_key(record), None)
            of_kind[_key(record)] = record
            if len(of_kind) > _KEPT:
                del of_kind[next(iter(of_kind))]
                self._say_once()

    def overtaken_by(self, records: Iterable[Record]) -> None:
        """These go to the store now: what waits under their keys is older."""
        for record in records:
            self._kinds[_kind(record)].pop(_key(record), None)

    def take(self) -> tuple[Record, ...]:
        """All of them, which wait no more."""
        taken = tuple(record for of_kind in self._kinds.values() for record in of_kind.values())
        self._kinds.clear()
        return taken

    def _say_once(self) -> None:
        if self._is_whole:
            _logger.warning(
                "event=history_not_kept this worker's store has not opened for so long that of its saves and its plans only the newest %d wait for it",
                _KEPT,
            )
        self._is_whole = False


def _kind(record: Record) -> object:
    """A save on a disk is no less worth for the thousand that followed in memory."""
    return (type(record), tier_of(record.path)) if isinstance(record, CheckpointRecord) else type(record)


def _key(record: Record) -> object:
    if isinstance(record, GenerationRecord):
        return record.run, record.generation
    if isinstance(record, CheckpointRecord):
        return record.run, record.step
    if isinstance(record, DirectoryRecord):
        return record.path, record.prefix
    return None
