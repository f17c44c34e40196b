"""Which nodes hold copies of whose checkpoints: the table copies."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def _text(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _number(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Integer, nullable=False) for name in names]


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "copies",
        *_number("run", "step", "rank"),
        *_text("node_id"),
        *_number("generation", "epoch", "step_in_epoch"),
        *_text("path", "digest_of_file"),
        *_number("file_bytes"),
        *_text("state", "reason"),
        *_number("wall_ms"),
        *_text("digest"),
        sa.PrimaryKeyConstraint("run", "step", "rank", "node_id"),
    )
