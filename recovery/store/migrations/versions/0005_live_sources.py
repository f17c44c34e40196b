"""In which ranks' memories a plan found its state: the table live_sources."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    numbers = ("run", "generation", "rank")
    op.create_table(
        "live_sources",
        *(sa.Column(name, sa.Integer, nullable=False) for name in numbers),
        sa.Column("structure", sa.Text, nullable=False),
        sa.Column("replicas", sa.Text, nullable=False),
        sa.Column("wall_ms", sa.Integer, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("run", "generation", "rank"),
    )
