"""The boot ids that a node's instance was heard with, so that a copy of it is known over a restart of the server."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("boots", sa.JSON(), nullable=True))
