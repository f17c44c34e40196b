"""The views that are rows: one column a line, the same words for tables, JSON, CSV and the page of the documentation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from recovery.clock import instant
from recovery.core.copy_index import with_copies
from recovery.core.copy_records import CopyRecord
from recovery.core.ids import NodeId
from recovery.core.records import CheckpointRecord
from recovery.core.tiers import tier_of


class Column(NamedTuple):
    """One value of a row."""

    key: str
    """In JSON and CSV; never renamed."""
    meaning: str
    of: Callable[[Any], Any]
    shown: bool = True
    """In the table for people too; else only in JSON and CSV."""


class View(NamedTuple):
    """A kind of row."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    def only(self, *keys: str) -> View:
        """The same with these columns alone."""
        return self._replace(columns=tuple(column for column in self.columns if column.key in keys))

    def rows(self, records: Iterable[Any]) -> list[dict[str, Any]]:
        """The records as plain values by key."""
        return [{column.key: column.of(record) for column in self.columns} for record in records]


def _field(key: str, meaning: str, *, shown: bool = True) -> Column:
    return Column(key, meaning, lambda record: getattr(record, key), shown)


def _word(key: str, meaning: str) -> Column:
    return Column(key, meaning, lambda record: getattr(record, key).value)


def _of_event(key: str) -> Column:
    shown = key in ("generation", "step")
    return Column(
        key, f"{key} that it is about; null: none", lambda stored: getattr(stored.event, key), shown
    )


NODES = View(
    "nodes",
    "The nodes of the job, by rank.",
    (
        _field("node_id", "name in the cluster (MS_NODE_ID)"),
        _word("role", "worker or pserver"),
        Column(
            "place",
            "rank: it holds a place in the world; standby: it waits to take a rank over; replaced: its rank was taken over",
            lambda node: None,
        ),
        _field("rank", "position in the world; null until ranks are assigned"),
        _field("incarnation", "which process of this id it is, 1-based"),
        _word(
            "state",
            "live, suspect, lost or left; `starting again`: lost or suspect, and its process starts its program again; while no scheduler runs on this host, what was live is `unheard` or `not running`",
        ),
        Column(
            "process",
            "running, not running or unknown (on another host), by the lock of its store or its process id; null from a running scheduler",
            lambda node: None,
            shown=False,
        ),
        _field("step", "last step that it reported"),
        _field("host", "address where other workers reach it"),
        _field("pid", "process id on that host"),
        _field("generation", "last generation whose plan it was given", shown=False),
        Column(
            "rejoin_left_s",
            "seconds for which its id is still refused, as of the last write",
            lambda node: node.rejoin_left_ms / 1000,
        ),
        _field("reason", "why it is in this state"),
        # Last, so that a script that reads CSV by number finds the others where they were.
        Column(
            "warming_up",
            "it is live, and has not finished its imports or what it loads first; null: an older scheduler does not say. The table for people has it as a state",
            lambda node: None,
            shown=False,
        ),
        Column(
            "newest_step",
            "as `step` of ranks: the highest of the current generation that it is known to have applied; null: it has no rank. The table for people has it as its step",
            lambda node: None,
            shown=False,
        ),
    ),
)
STEPS = View(
    "steps",
    "How far each worker has recorded that it is, with every heartbeat and save, in its own file; or has reported to a running scheduler.",
    (
        _field("node_id", "name in the cluster"),
        _field("rank", "position in the world"),
        _field("run", "run of the job"),
        _field("generation", "generation it trains in"),
        _field("incarnation", "which process of the id"),
        _field("step", "global step, 1-based"),
        _field("epoch", "1-based; null from a running scheduler that has not heard of it yet"),
        _field("step_in_epoch", "1-based; null from a running scheduler"),
    ),
)
RANKS = View(
    "ranks",
    "How far each worker is, by the newest of the scheduler's rows, its own records (of the first 64 ranks) and its checkpoints.",
    (
        _field("rank", "position in the world; null until ranks are assigned"),
        _field("node_id", "name in the cluster"),
        _field("state", "as of nodes"),
        _field("process", "as of nodes"),
        _field("step", "highest step of the current generation that it is known to have applied"),
        _field("known_by", "own notes, checkpoint, scheduler, or plan (it has reported nothing yet)"),
        _field(
            "noted",
            "when it wrote down last how far it is, ISO 8601, UTC; null: never, or not in these files",
        ),
        _field("reason", "why it is in this state", shown=False),
        _field(
            "data_ms",
            "median of its newest 100 batches: until it has the next batch; null: of a running job only, or its loop does not tell",
            shown=False,
        ),
        _field("compute_ms", "as data_ms: from the batch until its own gradients are there", shown=False),
    ),
)
CHECKPOINTS = View(
    "checkpoints",
    "The scheduler's checkpoint index, newest step first; with --all also the retired ones.",
    (
        _field("run", "run of the job"),
        _field("step", "global step: this many steps are in it"),
        _field("rank", "whose"),
        _field("generation", "in which it was written"),
        _word(
            "state",
            "published, committed (all ranks hold the step), fetching (its node gets it from a copy), invalid, or retired (older than the index keeps)",
        ),
        _field("epoch", "1-based", shown=False),
        _field("step_in_epoch", "1-based", shown=False),
        _field("file_bytes", "size"),
        _field("path", "file on its rank's host"),
        _field(
            "digest",
            "names the checkpoint: SHA-256 of its manifest, hex (of one that an earlier release saved: of its file)",
            shown=False,
        ),
        _field("reason", "why it is invalid"),
        # Last, so that a script that reads CSV by number finds the others where they were.
        Column(
            "tier",
            "disk, or memory: it is gone when its host restarts",
            lambda checkpoint: tier_of(checkpoint.path).value,
        ),
        _field("copies", "nodes of other ranks that hold a copy, which lies on the same tier"),
        Column(
            "file",
            "here: it lies there; removed: retention or somebody has taken it away, so no plan goes there; null: its directory is on no disk of this host, or may not be looked into",
            lambda checkpoint: None,
        ),
    ),
)
GENERATIONS = View(
    "generations",
    "One agreed membership and its plan each, oldest first.",
    (
        _field("run", "run of the job"),
        _field("generation", "number, 1-based"),
        _field("step", "where it began"),
        _field("epoch", "of that step", shown=False),
        _field("step_in_epoch", "of that step", shown=False),
        _field("because", "why it was needed: the first failure, by name"),
        _field("ended_step", "highest step that any rank had reported when it ended; 0 while it goes on"),
        _field("ended", "why it ended; empty while it goes on"),
    ),
)
EVENTS = View(
    "events",
    "The event log, oldest first.",
    (
        _field("sequence", "number of the event, without gaps"),
        Column("time", "when it was written, ISO 8601, UTC", lambda stored: instant(stored.wall_ms)),
        Column("kind", "what happened (events.md)", lambda stored: stored.event.kind.value),
        Column("node", "node id", lambda stored: stored.event.node_id),
        *(_of_event(key) for key in ("rank", "incarnation", "run", "generation", "step")),
        Column("reason", "why", lambda stored: stored.event.reason),
        Column(
            "because", "the first failure that it follows from", lambda stored: stored.event.because, False
        ),
        Column("details", "longer text, a traceback say", lambda stored: stored.event.details, False),
    ),
)
CERTIFICATES = View(
    "certs",
    "An authority and the certificates that it has issued, by name.",
    (
        _field("name", "common name; `recovery certs revoke DIR NAME` takes it"),
        _field("role", "what it restricts its holder to; empty: nothing"),
        _field("node_id", "the node id that it restricts its holder to; empty: none"),
        _field("state", "valid, expired or revoked"),
        _field("days_left", "days until it expires; negative: since"),
        _field("valid_until", "its last moment, UTC"),
        _field("valid_from", "its first moment, UTC", shown=False),
        _field("subject", "distinguished name", shown=False),
        _field("serial", "serial number, hexadecimal", shown=False),
    ),
)
VIEWS = (NODES, STEPS, CHECKPOINTS, GENERATIONS, EVENTS, CERTIFICATES)


def checkpoint_rows(
    checkpoints: Iterable[CheckpointRecord], copies: Iterable[CopyRecord]
) -> list[dict[str, Any]]:
    """Newest first, with the nodes that hold copies of each.

    Args:
        checkpoints: of the store.
        copies: of the store, without those that are gone or damaged.
    """
    holders: dict[tuple[int, int, int, str], list[NodeId]] = {}
    for copy in copies:
        holders.setdefault((copy.run, copy.step, copy.rank, copy.digest), []).append(copy.node_id)
    newest_first = sorted(checkpoints, key=lambda record: (-record.run, -record.step, record.rank))
    rows = CHECKPOINTS.rows(
        with_copies(record, holders.get((record.run, record.step, record.rank, record.digest), ()))
        for record in newest_first
    )
    return [{**row, "file": _on_disk(Path(row["path"]))} for row in rows]


def _on_disk(path: Path) -> str | None:
    """As the column `file`."""
    try:
        if path.exists():
            return "here"
        return "removed" if path.parent.is_dir() else None
    except OSError:
        # This user may not look there.
        return None
