"""What a worker keeps for its own next incarnation: its store, opened when it is admitted, and the search for its checkpoints.

The store belongs to the incarnation that runs. A predecessor that is only stopped (SIGSTOP) still holds its lock: then this one
trains without writing, says so, and takes the store as soon as the lock is free. Recovery does not depend on it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from recovery import clock
from recovery.core.effects import Persist
from recovery.core.ids import NodeId, Rank, RequestId, RunId
from recovery.core.messages import JobHistory, Offer, Skipped
from recovery.core.records import (
    ActivityRecord,
    DirectoryRecord,
    StepRecord,
)
from recovery.core.worker.job_history import joined, of_slot
from recovery.errors import (
    RecoveryError,
    RecoveryPathError,
    StoreError,
    StoreLockedError,
    StoreVersionError,
    StoreWaitError,
)
from recovery.store.paths import companion, worker_path
from recovery.worker.checkpoint_search import Found, copies_of, prefix_of, search
from recovery.worker.exec_in_place import close_in_children, descriptors_of, end_before_exec
from recovery.worker.slot_history import SlotNotes, past_in
from recovery.worker.waiting_records import WaitingRecords

if TYPE_CHECKING:
    from recovery.store.contents import WorkerRecords
    from recovery.store.repository import WorkerStore
    from recovery.store.writer import Writer

_logger = logging.getLogger("recovery.worker")
_RETRY_S = 2.0
"""How often a locked store is tried again: its holder is fenced and ends as soon as it runs, so seconds are soon enough. So late at most is
the store made of a process that takes over a lost rank: at its first step, and what comes before is kept until then.
"""
_CLOSE_S = 2.0
"""How long the end of the process waits for the last rows. A write takes milliseconds; a full or stuck disk takes none of them ever."""


class LocalStore:
    """The worker's store and checkpoint directories. Belongs to the connection's loop; a writer thread does the writing."""

    def __init__(
        self,
        recovery_path: Path | None,
        node_id: NodeId,
        *,
        accept_without_wal: bool,
        replaces: str = "",
        scheduler: tuple[str, int] | None = None,
    ) -> None:
        """Note where the store is; nothing is opened yet.

        Args:
            recovery_path: None when recovery is off: nothing is kept.
            node_id: names the file.
            accept_without_wal: see MS_STORE_WITHOUT_WAL.
            replaces: the lost id that this process was started in the place of; empty: none.
            scheduler: its host and port, which the store notes; None: nobody says.
        """
        self.recovery_path = recovery_path
        """None: recovery is off, nothing is kept."""
        self._node_id, self._accept_without_wal, self._scheduler = node_id, accept_without_wal, scheduler
        self._slot_notes, self._takes_over = SlotNotes(node_id, replaces), bool(replaces)
        self.copies = copies_of(recovery_path, node_id, replaces)
        """Contributions of other ranks, and those that were brought back for its own; None: recovery is off."""
        self._store: WorkerStore | None = None
        """None until this process may write it."""
        self._writer: Writer | None = None
        """None until the store is open, after a write has failed, and once it was closed."""
        self._opening = threading.Lock()
        """Held while the store is opened, in whichever thread."""
        self._using = threading.Lock()
        """Held while something is handed to the writer or the writer is taken away: the end of the process closes it in the main thread."""
        self._unwritten: deque[Persist] = deque()
        """Handed to the writer and not released yet, in order. Only the loop's thread touches it."""
        self._closed = False
        """The process ends: nothing is opened or written any more."""
        self._opens_later = False
        """The store of a process that has taken over a lost rank is made once it has stepped."""
        self._skipped = False
        """The newest row of progress was left out, because the store is behind; logged once until it has caught up."""
        self._directories: dict[tuple[str, str], DirectoryRecord] = {}
        """Where this process's training saves, by path and prefix."""
        self._passed_over: frozenset[Skipped] = frozenset()
        """What the last search did not take: logged once."""
        self._offered: dict[Rank, dict[tuple[str, str], DirectoryRecord]] = {}
        """Where the files of ranks lie that were offered to this process, by rank, then by path and prefix."""
        self._waiting: WaitingRecords | None = WaitingRecords()
        """What came before the store was open; None once a write has failed: nothing is written any more."""
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
        if self.recovery_path is not None:
            lock = companion(worker_path(self.recovery_path, self._node_id), ".lock")
            # Before it is taken: a child may be forked meanwhile.
            close_in_children(lambda: descriptors_of(lock))

    @staticmethod
    def new_request() -> RequestId:
        """A fresh request id."""
        return RequestId(secrets.token_hex(16))

    # --- the store -----------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Import what opening the store needs, while this process waits to be let in."""
        if self.recovery_path is not None:
            importlib.import_module("recovery.store.repository")
            importlib.import_module("recovery.store.writer")

    def open(self) -> None:
        """This process is the incarnation that may write. Blocks for some 0.2 s, so it runs in a thread of its own."""
        with self._opening:
            if self.recovery_path is not None and self._store is None and not self._closed:
                self._open(self.recovery_path)

    def _open(self, recovery_path: Path) -> None:
        from recovery.store.repository import WorkerStore  # noqa: PLC0415 - SQLAlchemy costs 0.2 s, paid while it waits
        from recovery.store.writer import Writer  # noqa: PLC0415 - as above

        try:
            store = WorkerStore.open(
                recovery_path,
                self._node_id,
                accept_without_wal=self._accept_without_wal,
                scheduler=self._scheduler,
            )
        except (StoreLockedError, StoreWaitError) as error:
            _logger.warning("%s %s", error.log_event, error)
            self._in_loop(self._open_later)
            return
        except (StoreError, RecoveryPathError) as error:
            self._in_loop(self._on_failure, error)
            return
        try:
            writer = Writer(
                store,
                on_durable=lambda ticket: self._in_loop(self._released, ticket),
                on_failure=lambda error: self._in_loop(self._failed, error),
                wall_ms=clock.wall_ms,
            )
        except RuntimeError as error:
            # No thread can be started now. What this node holds is found all the same.
            _logger.warning("event=store_not_opened it is tried again: %s", error)
            store.close()
            self._in_loop(self._open_later)
            return
        self._store, self._writer = store, writer
        # Before the interpreter's end closes the store: handlers that were registered later run earlier.
        atexit.register(self._close_in, os.getpid())
        end_before_exec(self.close)
        self._in_loop(self._write_what_waited)

    def _write_what_waited(self) -> None:
        waited = self._waiting.take() if self._waiting is not None else ()
        self._waiting = WaitingRecords()
        self.submit(Persist((*waited, *self._directories.values())))

    def _close_in(self, pid: int) -> None:
        """A child that was forked has the handler, but no writer thread."""
        if os.getpid() == pid:
            self.close()

    def close(self) -> None:
        """Let the writer write what it was given; what comes later is released without a row."""
        with self._using:
            writer, self._writer, self._closed = self._writer, None, True
        if writer is not None and not writer.close(_CLOSE_S):
            _logger.warning(
                "event=store_not_finished the last rows of %s were not written within %g s; recovery does not depend on them",
                self._node_id,
                _CLOSE_S,
            )

    def _open_later(self) -> None:
        self._loop.call_later(_RETRY_S, self._loop.run_in_executor, None, self.open)

    def _in_loop(self, call: Callable[..., object], *arguments: object) -> None:
        """From another thread; the loop may be gone when the process ends."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)

    def submit(self, persist: Persist) -> None:
        """Write, then release; without a store release at once."""
        with self._using:
            writer, waited = self._writer, self._waiting
            if writer is not None and writer.crowded and not persist.then and _is_progress(persist):
                self._skip()
            elif writer is not None:
                self._skipped = False
                if waited is not None:
                    waited.overtaken_by(persist.records)
                writer.submit(persist.records, persist)
                self._unwritten.append(persist)
                return
            elif waited is not None and self.recovery_path is not None:
                waited.keep(persist.records)
                if self._opens_later and any(isinstance(record, StepRecord) for record in persist.records):
                    self._opens_later = False
                    self._loop.run_in_executor(None, self.open)
        self._release(persist)

    def _skip(self) -> None:
        """How far a rank is, is for people, and comes again with every heartbeat: the one thing that a full disk may cost."""
        if not self._skipped:
            _logger.warning("event=progress_not_written the store of this worker is behind; training goes on")
        self._skipped = True

    def _released(self, ticket: object) -> None:
        assert isinstance(ticket, Persist), "only effects are submitted"
        oldest = self._unwritten.popleft()
        assert oldest is ticket, "a writer releases in the order of its batches"
        self._release(ticket)

    def _failed(self, error: RecoveryError) -> None:
        """A file whose write failed is not written again. Training goes on without it, so what waited for a row leaves without it."""
        self._on_failure(error)
        if isinstance(error, StoreWaitError):
            return
        self._writer = self._waiting = None
        while self._unwritten:
            self._release(self._unwritten.popleft())

    # --- checkpoints ---------------------------------------------------------------------------------------------------

    def add_directory(self, directory: Path, prefix: str, run: RunId) -> None:
        """Training saves here: the next incarnation will look here. Called in the main thread."""
        record = DirectoryRecord(path=str(directory), prefix=prefix, run=run)
        if self._directories.get((record.path, prefix)) == record:
            return
        self._directories[(record.path, prefix)] = record
        self._in_loop(self.submit, Persist((record,)))

    def keep_directories(self, rank: Rank) -> None:
        """This process has the rank that it was offered: where its files lie is where to look from now on."""
        places = {
            key: record for key, record in self._offered.pop(rank, {}).items() if key not in self._directories
        }
        self._directories.update(places)
        self.submit(Persist(tuple(places.values())))

    def find_offered(self, job: str, offer: Offer) -> Found:
        """Look what this process can read of another rank's files.

        Where they are said to lie, where the store of the node that held the rank says, and where this node has saved itself.

        Args:
            job: whose.
            offer: of which rank, and what is known of its files.

        Returns:
            What is held of the rank, and what was passed over.
        """
        if self.recovery_path is None:
            return Found()
        said = [(str(Path(held.path).parent), prefix_of(held)) for held in offer.held]
        records = [
            DirectoryRecord(path=path, prefix=prefix, run=offer.run)
            for path, prefix in said
            if prefix is not None
        ]
        for node_id in (offer.replaced, self._node_id):
            records += self._directories_of(self.recovery_path, node_id)
        places = {(record.path, record.prefix): record for record in records if record.run == offer.run}
        self._offered[offer.rank] = places
        everywhere = (*places.values(), *self._directories.values())
        there = search(self.copies, everywhere, job, offer.run, offer.rank)
        self._warn_of(there.passed_over)
        return Found(held=there.held, passed_over=there.passed_over)

    def _directories_of(self, recovery_path: Path, node_id: NodeId) -> tuple[DirectoryRecord, ...]:
        """Where a node has saved, as its store says; nothing where that cannot be read from here: the paths of the files say it too."""
        try:
            if node_id == self._node_id:
                return self._stored(recovery_path).directories
            return self._slot_notes.records_of(recovery_path, node_id).directories
        except (RecoveryError, OSError) as error:
            _logger.debug("the store of %s says nothing: %s", node_id, error)
            return ()

    def _stored(self, recovery_path: Path) -> WorkerRecords:
        """What earlier incarnations have noted. Reading needs no lock of the file, only that nobody here opens it meanwhile to write."""
        from recovery.store.reader import read_worker  # noqa: PLC0415 - see _open

        with self._opening:
            return read_worker(recovery_path, self._node_id) if self._store is None else self._store.load()

    def find_checkpoints(self, job: str, run: RunId, rank: Rank | None, past: JobHistory | None) -> Found:
        """Look into every directory this node has ever saved to. A scan is the truth, rows are only where to look.

        Args:
            job: whose checkpoints.
            run: of which run of it.
            rank: of which rank; None: this process was never given one.
            past: another job that this process remembers to have trained; None: none.

        Returns:
            What is held of the job, what was passed over, and what is known of another job, with what is held of that.

        Raises:
            StoreVersionError: a newer release wrote this node's store: what it holds must not count as nothing.
            RecoveryError: nobody can say what is held.
        """
        if self.recovery_path is None:
            return Found()
        records, of_store, is_of_job = tuple(self._directories.values()), None, False
        if self._takes_over and not worker_path(self.recovery_path, self._node_id).exists():
            # A new store takes some 40 ms to make, in which all ranks would wait for this one.
            self._opens_later = True
            self._in_loop(self._open_later)
        else:
            self.open()
            try:
                state = self._stored(self.recovery_path)
            except RecoveryError as error:
                if isinstance(error, StoreVersionError) or not records:
                    raise
            else:
                records += state.directories
                of_store, is_of_job = past_in(state, job), state.job is not None and state.job.job == job
        known = joined(past, of_store) if past is not None else of_store
        if known is not None or not is_of_job:
            notes = self._slot_notes.read(self.recovery_path, job)
            known = of_slot(known, notes.pasts)
            records += self._keep(notes.directories)
        there = search(self.copies, records, job, run, rank)
        if known is None:
            self._warn_of(there.passed_over)
            return Found(held=there.held, passed_over=there.passed_over)
        of_past = search(self.copies, records, known.job, known.run, known.rank).held
        taken = {held.path for held in of_past}
        passed_over = tuple(skipped for skipped in there.passed_over if skipped.path not in taken)
        self._warn_of(passed_over)
        return Found(
            held=there.held, passed_over=passed_over, past=msgspec.structs.replace(known, held=of_past)
        )

    def _keep(self, places: tuple[DirectoryRecord, ...]) -> tuple[DirectoryRecord, ...]:
        """Where earlier ids of this slot have saved is where to look from now on."""
        named = {(record.path, record.prefix): record for record in places}
        new = {key: record for key, record in named.items() if key not in self._directories}
        if new:
            self._directories.update(new)
            self._in_loop(self.submit, Persist(tuple(new.values())))
        return places

    def _warn_of(self, passed_over: tuple[Skipped, ...]) -> None:
        line = "event=checkpoint_passed_over path=%s step=%d reason=%r"
        for skipped in passed_over:
            if skipped not in self._passed_over:
                _logger.warning(line, skipped.path, skipped.step, skipped.reason)
        self._passed_over = frozenset(passed_over)


def _is_progress(persist: Persist) -> bool:
    return all(isinstance(record, StepRecord | ActivityRecord) for record in persist.records)
