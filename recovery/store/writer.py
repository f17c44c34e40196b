"""The one writer thread of a store: batches in, commits, then releases each batch's ticket.

All that has queued up while a commit was under way goes into the next one (group commit): one fsync, many answers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from recovery.core.records import Record
from recovery.errors import InvariantError, StoreError, StoreWaitError

RETRY_S = 0.5
"""Between two tries on a full disk, or a locked file. A person who frees space waits at most this long for the answers; a tenth of it
would keep the disk busy for nothing."""

QUEUE_MAX = 262_144
"""Batches and rows that may wait before the writer calls itself crowded. 1,000 nodes make some 4,000 a second at their busiest, so
this is a minute of a full or stuck disk and some 100 MB. What one more stimulus leads to is always taken: the caller asks `crowded`
before it takes one, not in the middle of it."""

LOOK_S = 1.0
"""How often an owner that has nothing to write looks whether its file is still there: once a heartbeat at least (3 s). A look costs
three system calls, some 10 us."""


class Store(Protocol):
    """What the writer needs of a store."""

    def apply(self, records: Sequence[Record], *, wall_ms: int) -> None:
        """Write all records in one transaction."""

    def check(self) -> None:
        """See that what is written to is still there."""


class Writer:
    """Owns the thread that applies batches to a store. The store itself stays the caller's, to be closed after."""

    def __init__(
        self,
        store: Store,
        *,
        on_durable: Callable[[object], None],
        on_failure: Callable[[StoreError], None],
        wall_ms: Callable[[], int],
    ) -> None:
        """Start the thread.

        Args:
            store: what is written to.
            on_durable: called with each batch's ticket once it is durable, in the order of `submit`, in the writer's thread.
            on_failure: called in the writer's thread: once per spell with each StoreWaitError (it goes on trying), or once
                with any other StoreError (it has stopped for good, later batches are dropped and never released).
            wall_ms: the wall clock, for the rows.
        """
        self._store, self._wall_ms = store, wall_ms
        self._on_durable, self._on_failure = on_durable, on_failure
        self._queue: deque[tuple[Sequence[Record], object]] = deque()
        self._waiting = 0
        """Batches and rows in the queue."""
        self._changed = threading.Condition()
        self._closing = self._given_up = self._failed = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, records: Sequence[Record], ticket: object) -> None:
        """Queue a batch and return at once, also when crowded. Thread-safe.

        Args:
            records: may be empty: the ticket is still released in its turn.
            ticket: given back by `on_durable`.

        Raises:
            InvariantError: the writer was closed.
        """
        with self._changed:
            if self._closing:
                message = "a batch was submitted to a closed writer"
                raise InvariantError(message)
            if self._failed:
                return
            self._queue.append((records, ticket))
            self._waiting += 1 + len(records)
            self._changed.notify()

    @property
    def crowded(self) -> bool:
        """Whether as much waits as may: a caller that can stop what leads to more batches does so until it is written."""
        return self._waiting >= QUEUE_MAX

    def close(self, timeout_s: float) -> bool:
        """Write what is queued, then stop.

        Args:
            timeout_s: how long to wait for it, in seconds.

        Returns:
            Whether everything was written. False after a failure, or when the disk stayed full or stuck, or the file locked.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        with self._changed:
            self._given_up = True
            self._changed.notify()
        if self._thread.is_alive():
            # It wakes and leaves, unless the disk itself holds it.
            self._thread.join(RETRY_S)
            return False
        return not self._failed and not self._queue

    def _run(self) -> None:
        while batches := self._next():
            if not self._write([record for records, _ in batches for record in records]):
                return
            for _, ticket in batches:
                self._on_durable(ticket)

    def _next(self) -> list[tuple[Sequence[Record], object]]:
        """Wait for work and take all of it; nothing means the end. Without work, look now and then whether the file is still there."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._queue or self._closing, LOOK_S):
                    batches = list(self._queue)
                    self._queue.clear()
                    self._waiting = 0
                    return batches
            try:
                self._store.check()
            except Exception as error:  # noqa: BLE001 - as in `_write`
                self._stop(error)
                return []

    def _write(self, records: Sequence[Record]) -> bool:
        reported = ""
        while records:
            try:
                self._store.apply(records, wall_ms=self._wall_ms())
                break
            except StoreWaitError as error:
                if reported != error.code:
                    self._on_failure(error)
                reported = error.code
                with self._changed:
                    if self._changed.wait_for(lambda: self._given_up, RETRY_S):
                        self._failed = True
                        return False
            except Exception as error:  # noqa: BLE001 - a thread that ends silently leaves every answer waiting for ever
                self._stop(error)
                return False
        return True

    def _stop(self, error: Exception) -> None:
        """For good: nothing that waits is written or released any more."""
        with self._changed:
            self._failed = True
            self._queue.clear()
            self._waiting = 0
        self._on_failure(_as_store_error(error))


def _as_store_error(error: Exception) -> StoreError:
    if isinstance(error, StoreError):
        return error
    unexpected = StoreError(
        "STORE_WRITE", path="the store", reason=f"unexpectedly: {type(error).__name__}: {error}"
    )
    unexpected.__cause__ = error
    return unexpected
