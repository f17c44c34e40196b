"""The first schema: job, runs, nodes, incarnations, generations, checkpoints, step_progress, directories, events, meta."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _text(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _number(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Integer, nullable=False) for name in names]


def _written() -> list[sa.Column[Any]]:
    return [*_number("wall_ms"), *_text("digest")]


def _rank() -> sa.Column[Any]:
    return sa.Column("rank", sa.Integer, nullable=True)


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "job",
        sa.Column("one", sa.Integer, sa.CheckConstraint("one = 1"), nullable=False, server_default="1"),
        *_text("job"),
        *_number("worker_count", "server_count", "run"),
        *_text("state"),
        *_number("generation", "scheduler_incarnation"),
        *_text("reason"),
        *_written(),
        sa.PrimaryKeyConstraint("one"),
    )
    op.create_table(
        "runs", *_number("run"), *_text("outcome", "reason"), *_written(), sa.PrimaryKeyConstraint("run")
    )
    op.create_table(
        "nodes",
        *_text("node_id", "role"),
        _rank(),
        *_number("incarnation"),
        *_text("state", "token_digest", "admission_request", "host"),
        *_number("pid", "generation", "step", "rejoin_left_ms"),
        *_text("reason"),
        *_written(),
        sa.PrimaryKeyConstraint("node_id"),
    )
    op.create_table(
        "incarnations",
        *_text("node_id"),
        *_number("incarnation"),
        _rank(),
        *_text("host"),
        *_number("pid", "run"),
        *_text("ended"),
        *_written(),
        sa.PrimaryKeyConstraint("node_id", "incarnation"),
    )
    _make_the_training_tables()
    op.create_table("meta", *_text("name", "value"), sa.PrimaryKeyConstraint("name"))


def _make_the_training_tables() -> None:
    op.create_table(
        "generations",
        *_number("run", "generation", "step", "epoch", "step_in_epoch"),
        *_text("because", "ended"),
        *_number("ended_step"),
        *_written(),
        sa.PrimaryKeyConstraint("run", "generation"),
    )
    op.create_table(
        "checkpoints",
        *_number("run", "step", "rank", "generation", "epoch", "step_in_epoch"),
        *_text("path", "digest_of_file"),
        *_number("file_bytes"),
        *_text("state", "reason"),
        *_written(),
        sa.PrimaryKeyConstraint("run", "step", "rank"),
    )
    op.create_table(
        "step_progress",
        *_text("node_id"),
        *_number("rank", "run", "generation", "incarnation", "step", "epoch", "step_in_epoch"),
        *_written(),
        sa.PrimaryKeyConstraint("node_id"),
    )
    op.create_table(
        "directories",
        *_text("path", "prefix"),
        *_number("run"),
        *_written(),
        sa.PrimaryKeyConstraint("path", "prefix"),
    )
    op.create_table(
        "events",
        sa.Column("sequence", sa.Integer, primary_key=True),
        *_text("kind"),
        sa.Column("node_id", sa.Text, nullable=True),
        *(
            sa.Column(name, sa.Integer, nullable=True)
            for name in ("rank", "incarnation", "run", "generation", "step")
        ),
        *_text("reason", "because", "details"),
        *_written(),
    )
