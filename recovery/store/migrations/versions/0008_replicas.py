"""What names that which all ranks must have alike in a checkpoint: a new column of checkpoints and copies.

The tables are made again, so that a migrated file has the schema of a fresh one to the letter. It is empty in every row, which leaves the digests as they
were.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    for name in ("checkpoints", "copies"):
        op.rename_table(name, f"{name}_before")
    op.create_table(
        "checkpoints",
        *_number("run", "step", "rank", "generation", "epoch", "step_in_epoch"),
        *_held(),
        sa.PrimaryKeyConstraint("run", "step", "rank"),
    )
    op.create_table(
        "copies",
        *_number("run", "step", "rank"),
        *_text("node_id"),
        *_number("generation", "epoch", "step_in_epoch"),
        *_held(),
        sa.PrimaryKeyConstraint("run", "step", "rank", "node_id"),
    )
    _move("checkpoints", "run, step, rank, generation, epoch, step_in_epoch")
    _move("copies", "run, step, rank, node_id, generation, epoch, step_in_epoch")


def _move(table: str, named: str) -> None:
    rest = "path, digest_of_file, file_bytes, state, reason"
    op.execute(
        f"INSERT INTO {table} ({named}, {rest}, replica, wall_ms, digest) "  # noqa: S608 - one of two names
        f"SELECT {named}, {rest}, '', wall_ms, digest FROM {table}_before"
    )
    op.drop_table(f"{table}_before")


def _held() -> list[sa.Column[Any]]:
    return [
        *_text("path", "digest_of_file"),
        *_number("file_bytes"),
        *_text("state", "reason", "replica"),
        *_number("wall_ms"),
        *_text("digest"),
    ]


def _text(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _number(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Integer, nullable=False) for name in names]
