"""Where in its output a node stands with a log (a mark that only its driver reads), and gaps of unknown size."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("task_logs", sa.Column("gap", sa.Boolean(), nullable=False, server_default="0"))
    op.add_column("task_logs", sa.Column("mark", sa.Text(), nullable=True))
