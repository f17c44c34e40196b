"""When each rank trained: the table activity."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_NUMBERS = (
    "run",
    "generation",
    "number",
    "rank",
    "incarnation",
    "first_step",
    "step",
    "lasting_ms",
    "due_ms",
    "wall_ms",
)


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "activity",
        sa.Column("node_id", sa.Text, nullable=False),
        *(sa.Column(name, sa.Integer, nullable=False) for name in _NUMBERS),
        sa.Column("digest", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("node_id", "run", "generation", "number"),
    )
