"""Who holds which place of the world, and which processes the incarnations are: the tables seats and processes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def _text(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _number(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Integer, nullable=False) for name in names]


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "seats",
        *_text("node_id", "seat"),
        *_number("wall_ms"),
        *_text("digest"),
        sa.PrimaryKeyConstraint("node_id"),
    )
    op.create_table(
        "processes",
        *_text("node_id"),
        *_number("incarnation"),
        *_text("boot_id"),
        *_number("pid_namespace", "start_ticks", "wall_ms"),
        *_text("digest"),
        sa.PrimaryKeyConstraint("node_id", "incarnation"),
    )
