"""Causes beside the sentences that were decided by: new columns of job, nodes and generations.

The tables are made again, so that a migrated file has the schema of a fresh one to the letter. Empty causes leave the digest of a row as it was; a row
that gets one gets a new digest, unless its old one did not match: then it stays as damaged as it was found.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_LOST = re.compile(r"(?P<about>\S+) lost: ")
_ENDED = re.compile(r"its process \(pid \d+\) has ended")


def upgrade() -> None:
    """Add the columns, and read the sentences once."""
    for name in ("job", "nodes", "generations"):
        op.rename_table(name, f"{name}_before")
    op.create_table(
        "job",
        sa.Column("one", sa.Integer, sa.CheckConstraint("one = 1"), nullable=False, server_default="1"),
        *_text("job"),
        *_number("worker_count", "server_count", "run"),
        *_text("state"),
        *_number("generation", "scheduler_incarnation"),
        *_text("reason", "cause", "about"),
        *_written(),
        sa.PrimaryKeyConstraint("one"),
    )
    op.create_table(
        "nodes",
        *_text("node_id", "role"),
        sa.Column("rank", sa.Integer, nullable=True),
        *_number("incarnation"),
        *_text("state", "token_digest", "admission_request", "host"),
        *_number("pid", "generation", "step", "rejoin_left_ms"),
        *_text("reason", "cause"),
        *_written(),
        sa.PrimaryKeyConstraint("node_id"),
    )
    op.create_table(
        "generations",
        *_number("run", "generation", "step", "epoch", "step_in_epoch"),
        *_text("because", "ended"),
        *_number("ended_step"),
        *_text("cause"),
        *_written(),
        sa.PrimaryKeyConstraint("run", "generation"),
    )
    _move("job", ("cause", "about"), skipped=("one",))
    _move("nodes", ("cause",))
    _move("generations", ("cause",))


def _move(table: str, added: tuple[str, ...], skipped: tuple[str, ...] = ()) -> None:
    connection = op.get_bind()
    for row in connection.execute(sa.text(f"SELECT * FROM {table}_before")).mappings().all():  # noqa: S608 - one of three names
        before = [value for name, value in row.items() if name not in (*skipped, "wall_ms", "digest")]
        found = dict.fromkeys(added, "")
        if _digest(table, row["wall_ms"], before) == row["digest"]:
            found.update(_cause_of(table, row))
        digest = (
            _digest(table, row["wall_ms"], [*before, *found.values()]) if found["cause"] else row["digest"]
        )
        values = {**row, **found, "digest": digest}
        names = ", ".join(values)
        bound = ", ".join(f":{name}" for name in values)
        connection.execute(sa.text(f"INSERT INTO {table} ({names}) VALUES ({bound})"), values)  # noqa: S608 - column names
    op.drop_table(f"{table}_before")


def _cause_of(table: str, row: Any) -> dict[str, str]:
    if table == "generations":
        return {"cause": "store_rebuilt" if row["because"] == "reported by the workers" else ""}
    reason = row["reason"]
    if table == "nodes":
        if reason == "its run finished":
            return {"cause": "run_finished"}
        if reason.startswith("its rank is handed over"):
            return {"cause": "rank_handed_over"}
        return {"cause": "process_ended" if _ENDED.fullmatch(reason) else ""}
    lost = _LOST.match(reason)
    if "the scheduler's store was lost and is rebuilt from what the workers tell" in reason:
        return {"cause": "store_rebuilt"}
    return {"cause": "node_lost", "about": lost["about"]} if lost is not None else {}


def _digest(table: str, wall_ms: int, values: list[Any]) -> str:
    """As rows.py makes it: last fields that are empty do not count where they are new."""
    while values and values[-1] == "" and len(values) > _BEFORE[table]:
        values = values[:-1]
    return hashlib.blake2b(msgspec.msgpack.encode([table, wall_ms, *values]), digest_size=16).hexdigest()


_BEFORE = {"job": 8, "nodes": 13, "generations": 8}
"""How many fields each had."""


def _text(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _number(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Integer, nullable=False) for name in names]


def _written() -> list[sa.Column[Any]]:
    return [*_number("wall_ms"), *_text("digest")]
