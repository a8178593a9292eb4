"""What ended the last task that was counted against a node, and when, so that one restart is one cause."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("bad_cause", sa.String(64), nullable=True))
    op.add_column("nodes", sa.Column("bad_cause_at", sa.String(32), nullable=True))
