"""How many attempts ended for which reason, kept when the attempts themselves are removed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "end_counts",
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("reason", name=op.f("pk_end_counts")),
    )
    # The ends that are still on record; what was removed before is not known.
    op.execute(
        "INSERT INTO end_counts (reason, count)"
        " SELECT reason, COUNT(*) FROM attempts WHERE reason IS NOT NULL GROUP BY reason"
    )
