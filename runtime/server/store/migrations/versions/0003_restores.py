"""What nodes tell of the time that a database which was put back has lost, and numbers that leave room for it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("control_plane", sa.Column("lost_from", sa.BigInteger(), nullable=True))
    op.add_column("control_plane", sa.Column("lost_spans", sa.JSON(), nullable=True))
    op.add_column("tasks", sa.Column("attempt_floor", sa.Integer(), nullable=False, server_default="0"))
    op.create_table(
        "witnesses",
        sa.Column("node_id", sa.String(63), primary_key=True),
        sa.Column("instance_id", sa.String(128)),
        sa.Column("seen_revision", sa.BigInteger(), nullable=False),
        sa.Column("lost_from", sa.BigInteger(), nullable=False),
        sa.Column("lost_to", sa.BigInteger()),
        sa.Column("heard_at", sa.String(32), nullable=False),
        sa.Column("told_at", sa.String(32)),
        sa.Column("complete", sa.Boolean(), nullable=False, server_default="0"),
        sa.Column("claims", sa.JSON()),
    )
    op.create_table(
        "orphans",
        sa.Column("node_id", sa.String(63), primary_key=True),
        sa.Column("uid", sa.String(36), primary_key=True),
        sa.Column("attempt", sa.Integer(), primary_key=True),
        sa.Column("facts", sa.JSON(), nullable=False),
    )
