"""Until when somebody reads a task's log: told by the process that was asked to the one that hears the node."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tasks", sa.Column("log_until", sa.String(length=32), nullable=True))
