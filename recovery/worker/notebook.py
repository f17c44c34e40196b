"""What a worker keeps for its own next incarnation: its store, opened when it is admitted, and the look at its checkpoints.

The store belongs to the incarnation that runs. A predecessor that is only stopped (SIGSTOP) still holds its lock: then this one
trains without writing, says so, and takes the store as soon as the lock is free. Recovery does not depend on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from recovery import clock
from recovery.checkpoint import catalogue
from recovery.core.effects import Persist
from recovery.core.ids import NodeId, RequestId, RunId
from recovery.core.messages import HeldCheckpoint
from recovery.core.records import DirectoryRecord
from recovery.errors import RecoveryError, RecoveryPathError, StoreError, StoreFullError, StoreLockedError
from recovery.worker.descriptors import close_in_children

if TYPE_CHECKING:
    from recovery.store.repository import WorkerStore
    from recovery.store.writer import Writer

_logger = logging.getLogger("recovery.worker")
_RETRY_S = 2.0
"""How often a locked store is tried again: its holder is fenced and ends as soon as it runs, so seconds are soon enough."""


class Notebook:
    """The worker's store and checkpoint directories. Lives in the connection's loop; a writer thread does the writing."""

    def __init__(self, recovery_path: Path | None, node_id: NodeId, *, accept_without_wal: bool) -> None:
        """Note where the store is; nothing is opened yet.

        Args:
            recovery_path: None when recovery is off: nothing is kept.
            node_id: names the file.
            accept_without_wal: see MS_STORE_WITHOUT_WAL.
        """
        self._path, self._node_id, self._accept_without_wal = recovery_path, node_id, accept_without_wal
        self.recovery_path = recovery_path
        self._writer: Writer | None = None
        self._store: WorkerStore | None = None
        self._opening = threading.Lock()
        self._directories: dict[tuple[str, str], DirectoryRecord] = {}
        self._release: Callable[[Persist], None]
        self._on_failure: Callable[[RecoveryError], None]
        self._loop: asyncio.AbstractEventLoop

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        release: Callable[[Persist], None],
        on_failure: Callable[[RecoveryError], None],
    ) -> None:
        """Join the loop in which durable writes are released."""
        self._loop, self._release, self._on_failure = loop, release, on_failure

    @staticmethod
    def new_request() -> RequestId:
        """A fresh request id."""
        return RequestId(secrets.token_hex(16))

    # --- the store -----------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Import what opening the store needs, while this process waits to be let in."""
        if self._path is not None:
            importlib.import_module("recovery.store.repository")
            importlib.import_module("recovery.store.writer")

    def open(self) -> None:
        """This process is the incarnation that may write. Blocks for some 0.2 s, so it runs in a thread of its own."""
        with self._opening:
            if self._path is not None and self._writer is None:
                self._open(self._path)

    def _open(self, recovery_path: Path) -> None:
        from recovery.store.repository import WorkerStore  # noqa: PLC0415 - SQLAlchemy costs 0.2 s, paid while it waits
        from recovery.store.writer import Writer  # noqa: PLC0415 - as above

        try:
            store = WorkerStore.open(
                recovery_path, self._node_id, accept_without_wal=self._accept_without_wal
            )
        except StoreLockedError as error:
            _logger.warning("event=store_locked %s", error)
            self._in_loop(self._open_later)
            return
        except (StoreError, RecoveryPathError) as error:
            self._in_loop(self._on_failure, error)
            return
        self._store = store
        close_in_children(lambda: _descriptors_of(recovery_path / "workers" / f"{self._node_id}.db.lock"))
        self._writer = Writer(
            store,
            on_durable=lambda ticket: self._in_loop(self._released, ticket),
            on_failure=lambda error: self._in_loop(self._failed, error),
            wall_ms=clock.wall_ms,
        )
        self._in_loop(self.submit, Persist(tuple(self._directories.values())))

    def _open_later(self) -> None:
        self._loop.call_later(_RETRY_S, self._loop.run_in_executor, None, self.open)

    def _in_loop(self, call: Callable[..., object], *arguments: object) -> None:
        """From another thread; the loop may be gone when the process ends."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)

    def submit(self, persist: Persist) -> None:
        """Write, then release; without a store release at once."""
        if self._writer is None:
            self._release(persist)
        else:
            self._writer.submit(persist.records, persist)

    def _released(self, ticket: object) -> None:
        assert isinstance(ticket, Persist), "only effects are submitted"
        self._release(ticket)

    def _failed(self, error: RecoveryError) -> None:
        if not isinstance(error, StoreFullError):
            self._writer = None  # a file whose write failed is not written again; training goes on without it
        self._on_failure(error)

    # --- checkpoints ---------------------------------------------------------------------------------------------------

    def add_directory(self, directory: Path, prefix: str, run: RunId) -> None:
        """Training saves here: the next incarnation will look here. Called in the main thread."""
        record = DirectoryRecord(path=str(directory), prefix=prefix, run=run)
        if self._directories.get((record.path, prefix)) == record:
            return
        self._directories[(record.path, prefix)] = record
        self._in_loop(self.submit, Persist((record,)))

    def _stored(self, recovery_path: Path) -> tuple[DirectoryRecord, ...]:
        """The directories that earlier incarnations saved to. Reading needs no lock."""
        if self._store is not None:
            return self._store.load().directories
        from recovery.store.reader import read_worker  # noqa: PLC0415 - see _open

        return read_worker(recovery_path, self._node_id).directories

    def find_checkpoints(self, job: str, run: RunId) -> tuple[HeldCheckpoint, ...]:
        """Look into every directory this node has ever saved to. A scan is the truth, rows are only where to look."""
        if self._path is None:
            return ()
        self.open()
        records = tuple(self._directories.values())
        try:
            records += self._stored(self._path)
        except RecoveryError:
            if not records:
                raise
        places = [(record.path, record.prefix) for record in records if record.run == run]
        return catalogue.scan_all(places, job=job, run=run)


def _descriptors_of(path: Path) -> list[int]:
    """Open descriptors of a file. A forked child that keeps one keeps the lock beyond its parent's death."""
    found: list[int] = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if entry.readlink() == path:
                found.append(int(entry.name))
    return found
