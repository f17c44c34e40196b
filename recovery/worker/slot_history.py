"""What the other ids of this process's slot have noted: a launcher gives each start after a loss a fresh id, and the files stay."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import NamedTuple

import msgspec

from recovery.core.ids import NodeId
from recovery.core.messages import JobHistory
from recovery.core.policy import rebuild
from recovery.core.policy.ranks import is_in_slot, slot_of
from recovery.core.records import DirectoryRecord
from recovery.errors import RecoveryError
from recovery.store.contents import WorkerRecords
from recovery.store.paths import companion, facts_of, worker_path

_logger = logging.getLogger("recovery.worker")


class Notes(msgspec.Struct, frozen=True):
    """What was found."""

    pasts: dict[NodeId, JobHistory]
    """By id: another job than the one that is asked for."""
    directories: tuple[DirectoryRecord, ...]
    """Where they have saved."""


class _Read(NamedTuple):
    """A store as it was read last."""

    path: Path
    seen: tuple[object, ...]
    """What its files looked like before."""
    records: WorkerRecords


class SlotNotes:
    """Reads the stores of a slot's other ids. Each one that cannot be read is logged once. Threads may call any method."""

    def __init__(self, node_id: NodeId, replaces: str) -> None:
        """Note whose slot it is.

        Args:
            node_id: of this process.
            replaces: the lost id that it was started in the place of; empty: none.
        """
        self._node_id, self._slot = node_id, slot_of(node_id, replaces)
        self._unreadable: set[NodeId] = set()
        self._reading = threading.Lock()
        self._last: _Read | None = None

    def records_of(self, recovery_path: Path, name: NodeId) -> WorkerRecords:
        """What an id has noted. The store that was read last is not read again while its files stay as they were.

        A process that takes a lost rank asks twice for the same one, and each time costs 4 ms of it while all other ranks wait.

        Raises:
            RecoveryError, OSError: it cannot be read.
        """
        from recovery.store.reader import read_worker  # noqa: PLC0415 - SQLAlchemy costs 0.2 s

        path = worker_path(recovery_path, name)
        with self._reading:
            # A commit is written to the -wal or to the file.
            seen = facts_of(path, companion(path, "-wal"))
            if self._last is None or (self._last.path, self._last.seen) != (path, seen):
                self._last = _Read(path, seen, read_worker(recovery_path, name, accept_without_wal=True))
            return self._last.records

    def read(self, recovery_path: Path, job: str) -> Notes:
        """Look what they know of another job than this one, unless one of them knows this one. Reading needs no lock.

        Raises:
            RecoveryPathError: the path cannot be listed.
        """
        from recovery.store.reader import stored_workers  # noqa: PLC0415 - as in records_of

        pasts: dict[NodeId, JobHistory] = {}
        directories: list[DirectoryRecord] = []
        # The newest first: where a rank was lost often, each of the others costs a millisecond or two while all ranks wait.
        for name in sorted(
            map(NodeId, stored_workers(recovery_path)), key=lambda name: (len(name), name), reverse=True
        ):
            if name == self._node_id or not is_in_slot(name, self._slot):
                continue
            try:
                state = self.records_of(recovery_path, name)
            except (RecoveryError, OSError) as error:
                self._not_read(name, error)
                continue
            if state.job is not None and state.job.job == job:
                return Notes({}, ())
            past = past_in(state, job)
            if past is not None:
                pasts[name] = past
                directories += state.directories
        return Notes(pasts, tuple(directories))

    def _not_read(self, name: NodeId, error: Exception) -> None:
        if name not in self._unreadable:
            _logger.warning("event=place_not_read what %s has noted is not known: %s", name, error)
        self._unreadable.add(name)


def past_in(state: WorkerRecords, job: str) -> JobHistory | None:
    """What a store says of another job than this one; None: nothing."""
    if state.job is None or state.node is None or state.job.job == job:
        return None
    return rebuild.past_of(state.job, state.node, state.generations, state.checkpoints)
