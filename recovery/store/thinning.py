"""Deletes the oldest rows of what is only history, so that no file grows for ever. How many stay: `core/policy/history.py`.

The order is that in which the rows were first written (SQLite's rowid). A deletion is part of the write that makes it due, and so is the
event that tells of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    and_,
    delete,
    exists,
    func,
    literal_column,
    not_,
    or_,
    select,
    true,
)

from recovery.core.copy_records import CopyRecord, CopyState
from recovery.core.failed_work import FROM_ANOTHER, KINDS
from recovery.core.ids import RunId
from recovery.core.policy.history import KEPT, OF_SAVES, History, piece, slack, thinned
from recovery.core.records import (
    ActivityRecord,
    CheckpointRecord,
    CheckpointState,
    EventKind,
    EventRecord,
    GenerationRecord,
    IncarnationRecord,
    NodeState,
    ProcessRecord,
)
from recovery.errors import StoreError
from recovery.store.meta import meta_text, set_meta
from recovery.store.models import CHECKPOINTS, COPIES, EVENTS, INCARNATIONS, NODES, PROCESSES
from recovery.store.rows import SHAPES
from recovery.store.stored_records import newest_own_save

OF_SCHEDULER = (
    History.FAILURES,
    History.SAVES,
    History.RETIRED,
    History.COPIES,
    History.INCARNATIONS,
    History.PROCESSES,
)
OF_WORKER = (History.OWN_SAVES, History.OWN_PLANS, History.ACTIVITY)
"""What the two files hold."""

_rowid: ColumnElement[int] = literal_column("rowid")
_OF_SAVES = EVENTS.c.kind.in_(sorted(kind.value for kind in OF_SAVES))

_HERE = select(NODES.c.node_id).where(NODES.c.state.in_((NodeState.LIVE.value, NodeState.SUSPECT.value)))
_NOT_ASKED_FOR = EVENTS.c.sequence.not_in(
    select(func.max(EVENTS.c.sequence))
    .where(or_(EVENTS.c.node_id.is_(None), EVENTS.c.node_id.in_(_HERE)))
    .group_by(EVENTS.c.kind, EVENTS.c.node_id)
)
"""The newest event of each kind, of the job and of each node that is here, says how it is now, however long ago that was written."""


class _Rows(NamedTuple):
    record: type[msgspec.Struct]
    which: ColumnElement[bool]


_ROWS = {
    History.FAILURES: _Rows(EventRecord, not_(_OF_SAVES)),
    History.SAVES: _Rows(EventRecord, _OF_SAVES),
    History.RETIRED: _Rows(CheckpointRecord, CHECKPOINTS.c.state == CheckpointState.RETIRED.value),
    History.COPIES: _Rows(CopyRecord, COPIES.c.state == CopyState.GONE.value),
    History.INCARNATIONS: _Rows(
        IncarnationRecord,
        ~exists().where(
            NODES.c.node_id == INCARNATIONS.c.node_id, NODES.c.incarnation == INCARNATIONS.c.incarnation
        ),
    ),
    History.PROCESSES: _Rows(
        ProcessRecord,
        ~exists().where(
            NODES.c.node_id == PROCESSES.c.node_id, NODES.c.incarnation == PROCESSES.c.incarnation
        ),
    ),
    History.OWN_SAVES: _Rows(CheckpointRecord, true()),
    History.OWN_PLANS: _Rows(GenerationRecord, true()),
    History.ACTIVITY: _Rows(ActivityRecord, true()),
}
"""Of each kind, its class of records and which of their rows it is."""


class Thinned(NamedTuple):
    """What a write has deleted."""

    rows: int
    """How many."""
    events: tuple[EventRecord, ...]
    """What tells of it, one for each kind."""


class HistoryThinner:
    """Of one open file: knows when the next look is due."""

    def __init__(self, connection: Connection, path: Path, kinds: Sequence[History]) -> None:
        """Go on counting, within a transaction, where earlier processes were: the rows of a table number themselves."""
        self._path, self._kinds = path, kinds
        self._written = {
            kind: (connection.execute(select(func.max(_rowid)).select_from(_table(kind))).scalar() or 0)
            % slack(kind)
            for kind in kinds
        }
        """By kind, rows of its table that were written since the last look."""

    def thin(self, connection: Connection, written: Mapping[type[msgspec.Struct], int]) -> Thinned:
        """Delete what is over the bounds, in the transaction of a write."""
        total, events = 0, list[EventRecord]()
        for kind in self._kinds:
            self._written[kind] += written.get(_ROWS[kind].record, 0)
            if self._written[kind] < slack(kind):
                continue
            count = self._delete(connection, kind)
            # What an older release has left goes piece by piece, with the next writes.
            self._written[kind] = slack(kind) if count == piece(kind) else 0
            if count:
                total += count
                events.append(thinned(kind, count))
        return Thinned(total, tuple(events))

    def _delete(self, connection: Connection, kind: History) -> int:
        table, which = _table(kind), _ROWS[kind].which
        newest = select(_rowid).select_from(table).where(which).order_by(_rowid.desc())
        oldest_kept = connection.execute(newest.limit(1).offset(KEPT[kind] - 1)).scalar()
        if oldest_kept is None:
            return 0
        if kind is History.FAILURES:
            which = and_(which, _NOT_ASKED_FOR)
        if kind is History.OWN_SAVES:
            which = and_(which, *self._not_the_newest(connection))
        goes = select(_rowid).select_from(table).where(which, _rowid < oldest_kept)
        goes = goes.order_by(_rowid).limit(piece(kind))
        if kind is History.SAVES:
            self._count_failed_work(connection, goes)
        return connection.execute(delete(table).where(_rowid.in_(goes))).rowcount

    def _not_the_newest(self, connection: Connection) -> Iterable[ColumnElement[bool]]:
        """A worker whose scheduler has lost its store says from it that it has saved: the job would begin at step 0 without it."""
        newest = newest_own_save(connection, self._path)
        if newest is not None:
            yield not_(and_(CHECKPOINTS.c.run == newest.run, CHECKPOINTS.c.step == newest.step))

    def _count_failed_work(self, connection: Connection, goes: Select[Any]) -> None:
        """How many saves, copies and uploads have failed is told for the whole of a run."""
        failed = (
            select(EVENTS.c.run, EVENTS.c.kind, func.count())
            .where(_rowid.in_(goes), IS_FAILED_WORK)
            .group_by(EVENTS.c.run, EVENTS.c.kind)
        )
        for run, kind, count in connection.execute(failed).all():
            value = str(failed_before(connection, run, EventKind(kind), self._path) + count)
            set_meta(connection, _thinned(run, EventKind(kind)), value)


IS_FAILED_WORK = and_(
    EVENTS.c.kind.in_([kind.value for kind in KINDS]), not_(EVENTS.c.details.endswith(FROM_ANOTHER))
)
"""The events that `FailedWork` counts."""


def failed_before(connection: Connection, run: RunId, kind: EventKind, path: Path) -> int:
    """How many events of a run that say that a save, a copy or an upload failed were deleted, in the transaction of `connection`."""
    found = meta_text(connection, _thinned(run, kind), path) or "0"
    if found.isascii() and found.isdigit():
        return int(found)
    reason = "it does not say how many saves, copies and uploads have failed"
    raise StoreError("STORE_CORRUPT", path=str(path), reason=reason)


def _thinned(run: RunId, kind: EventKind) -> str:
    return f"{KINDS[kind]}_thinned:{run}"


def _table(kind: History) -> Table:
    return SHAPES[_ROWS[kind].record].table
