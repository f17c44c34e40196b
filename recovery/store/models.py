"""The tables. One table per record class of `recovery.core.records`, one column per field, in the same order.

Every row also has `wall_ms` (when it was written, UTC, for people) and `digest` (see rows.py).
Core tables, not mapped classes: `sqlalchemy.orm` would add 50 ms to every worker's start and nothing else.
A change here needs a new file in migrations/versions; a test compares the two.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import CheckConstraint, Column, Integer, MetaData, PrimaryKeyConstraint, String, Table, Text

METADATA = MetaData()


def _text(*names: str) -> list[Column[Any]]:
    return [Column(name, Text, nullable=False) for name in names]


def _number(*names: str) -> list[Column[Any]]:
    return [Column(name, Integer, nullable=False) for name in names]


def _maybe_text(*names: str) -> list[Column[Any]]:
    return [Column(name, Text, nullable=True) for name in names]


def _maybe_number(*names: str) -> list[Column[Any]]:
    return [Column(name, Integer, nullable=True) for name in names]


def _table(name: str, key: tuple[str, ...], *columns: list[Column[Any]]) -> Table:
    flat = [column for group in (*columns, _number("wall_ms"), _text("digest")) for column in group]
    return Table(name, METADATA, *flat, PrimaryKeyConstraint(*key))


JOB = Table(
    "job",
    METADATA,
    Column(
        "one",
        Integer,
        CheckConstraint("one = 1"),
        nullable=False,
        server_default="1",
        default=1,
        autoincrement=False,
    ),
    *_text("job"),
    *_number("worker_count", "server_count", "run"),
    *_text("state"),
    *_number("generation", "scheduler_incarnation"),
    *_text("reason", "cause", "about"),
    *_number("wall_ms"),
    *_text("digest"),
    PrimaryKeyConstraint("one"),
)
"""At most one row: the job of this recovery path."""

RUNS = _table("runs", ("run",), _number("run"), _text("outcome", "reason"))

NODES = _table(
    "nodes",
    ("node_id",),
    _text("node_id", "role"),
    _maybe_number("rank"),
    _number("incarnation"),
    _text("state", "token_digest", "admission_request", "host"),
    _number("pid", "generation", "step", "rejoin_left_ms"),
    _text("reason", "cause"),
)

SLOTS = _table("seats", ("node_id",), _text("node_id", "seat"))

PROCESSES = _table(
    "processes",
    ("node_id", "incarnation"),
    _text("node_id"),
    _number("incarnation"),
    _text("boot_id"),
    _number("pid_namespace", "start_ticks"),
)

INCARNATIONS = _table(
    "incarnations",
    ("node_id", "incarnation"),
    _text("node_id"),
    _number("incarnation"),
    _maybe_number("rank"),
    _text("host"),
    _number("pid", "run"),
    _text("ended"),
)

GENERATIONS = _table(
    "generations",
    ("run", "generation"),
    _number("run", "generation", "step", "epoch", "step_in_epoch"),
    _text("because", "ended"),
    _number("ended_step"),
    _text("cause"),
)

LIVE_SOURCES = _table(
    "live_sources",
    ("run", "generation", "rank"),
    _number("run", "generation", "rank"),
    _text("structure", "replicas"),
)
"""In the scheduler's store: which plans went to the memory of a rank, or of several ranks that have a part of the state each."""

TRAINING_ENDS = _table("training_ends", ("run",), _number("run", "step"), _text("reason"))
"""In the scheduler's store: at which step a script has ended the training of a run."""

CHECKPOINTS = _table(
    "checkpoints",
    ("run", "step", "rank"),
    _number("run", "step", "rank", "generation", "epoch", "step_in_epoch"),
    _text("path", "digest_of_file"),
    _number("file_bytes"),
    _text("state", "reason", "replica"),
)
"""`digest_of_file` is the record's `digest`: the column `digest` is the row's own in every table."""

COPIES = _table(
    "copies",
    ("run", "step", "rank", "node_id"),
    _number("run", "step", "rank"),
    _text("node_id"),
    _number("generation", "epoch", "step_in_epoch"),
    _text("path", "digest_of_file"),
    _number("file_bytes"),
    _text("state", "reason", "replica"),
)
"""In the scheduler's store: which nodes hold copies of a rank's checkpoint."""

STEP_PROGRESS = _table(
    "step_progress",
    ("node_id",),
    _text("node_id"),
    _number("rank", "run", "generation", "incarnation", "step", "epoch", "step_in_epoch"),
)

ACTIVITY = _table(
    "activity",
    ("node_id", "run", "generation", "number"),
    _text("node_id"),
    _number(
        "run",
        "generation",
        "number",
        "rank",
        "incarnation",
        "first_step",
        "step",
        "lasting_ms",
        "due_ms",
    ),
)
"""When each rank trained, a few rows for each generation; history, as the events are."""

DIRECTORIES = _table("directories", ("path", "prefix"), _text("path", "prefix"), _number("run"))

EVENTS = Table(
    "events",
    METADATA,
    Column("sequence", Integer, primary_key=True),
    *_text("kind"),
    *_maybe_text("node_id"),
    *_maybe_number("rank", "incarnation", "run", "generation", "step"),
    *_text("reason", "because", "details"),
    *_number("wall_ms"),
    *_text("digest"),
)
"""The event log: appended, never changed. `sequence` is 1, 2, 3, ... in the order of the writes."""

META = Table("meta", METADATA, *_text("name", "value"), PrimaryKeyConstraint("name"))
"""Facts about the file: `owner` (scheduler, or worker:<node_id>) and `dirty` (1 while a process has it open), beside what
meta.py, scheduler_address.py, thinning.py and write_count.py note."""

VERSION = Table(
    "alembic_version",
    METADATA,
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's own table, spelt out so that a new file can be made and a current one recognised without importing Alembic."""
