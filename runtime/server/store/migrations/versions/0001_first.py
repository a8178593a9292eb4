"""The first schema: who the control plane is, operators, nodes, tasks with their attempts, cards, events, logs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("uid", sa.String(length=36), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("node_id", sa.String(length=63), nullable=False),
        sa.Column("instance_id", sa.String(length=128), nullable=True),
        sa.Column("claim_token", sa.String(length=128), nullable=True),
        sa.Column("scheduled_at", sa.String(length=32), nullable=False),
        sa.Column("claimed_at", sa.String(length=32), nullable=True),
        sa.Column("started_at", sa.String(length=32), nullable=True),
        sa.Column("ended_at", sa.String(length=32), nullable=True),
        sa.Column("node_finished_at", sa.String(length=32), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("container_id", sa.String(length=128), nullable=True),
        sa.Column("gpus", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("uid", "attempt", name=op.f("pk_attempts")),
    )
    op.create_table(
        "control_plane",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("revision", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("rolled_back_since", sa.String(length=32), nullable=True),
        sa.Column("release", sa.String(length=60), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_control_plane")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("time", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("code", sa.String(length=80), nullable=True),
        sa.Column("node_id", sa.String(length=63), nullable=True),
        sa.Column("gpu_uuid", sa.String(length=200), nullable=True),
        sa.Column("task_id", sa.String(length=63), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("actor", sa.String(length=200), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_node_id"), "events", ["node_id"], unique=False)
    op.create_index(op.f("ix_events_task_id"), "events", ["task_id"], unique=False)
    op.create_index(op.f("ix_events_time"), "events", ["time"], unique=False)
    op.create_table(
        "exclusions",
        sa.Column("uid", sa.String(length=36), nullable=False),
        sa.Column("node_id", sa.String(length=63), nullable=False),
        sa.Column("until", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("uid", "node_id", name=op.f("pk_exclusions")),
    )
    op.create_table(
        "gpu_allocations",
        sa.Column("node_id", sa.String(length=63), nullable=False),
        sa.Column("parent_uuid", sa.String(length=200), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("gpu_uuid", sa.String(length=200), nullable=False),
        sa.Column("mode", sa.String(length=10), nullable=False),
        sa.Column("uid", sa.String(length=36), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("releasing", sa.Boolean(), server_default="0", nullable=False),
        sa.UniqueConstraint("node_id", "parent_uuid", "slot", name=op.f("uq_gpu_allocations_node_id_parent_uuid_slot")),
    )
    op.create_index(op.f("ix_gpu_allocations_uid_attempt"), "gpu_allocations", ["uid", "attempt"], unique=False)
    op.create_table(
        "instructions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("channel", sa.String(length=10), nullable=False),
        sa.Column("node_id", sa.String(length=63), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("claim_token", sa.String(length=128), nullable=True),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("expires_at", sa.String(length=32), nullable=False),
        sa.Column("claimed_at", sa.String(length=32), nullable=True),
        sa.Column("finished_at", sa.String(length=32), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("revision", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_instructions")),
    )
    op.create_index(
        op.f("ix_instructions_node_id_channel_status"), "instructions", ["node_id", "channel", "status"], unique=False
    )
    op.create_index(op.f("ix_instructions_revision"), "instructions", ["revision"], unique=False)
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(length=63), nullable=False),
        sa.Column("instance_id", sa.String(length=128), nullable=True),
        sa.Column("fingerprint", sa.String(length=128), nullable=True),
        sa.Column("boot_id", sa.String(length=128), nullable=True),
        sa.Column("run", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("leaving", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("registered_at", sa.String(length=32), nullable=False),
        sa.Column("last_seen_at", sa.String(length=32), nullable=True),
        sa.Column("cordon_reason", sa.Text(), nullable=True),
        sa.Column("cordon_owner", sa.String(length=200), nullable=True),
        sa.Column("cordon_since", sa.String(length=32), nullable=True),
        sa.Column("draining", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("drain_deadline", sa.String(length=32), nullable=True),
        sa.Column("drain_then", sa.String(length=20), nullable=True),
        sa.Column("bad_ends", sa.Integer(), server_default="0", nullable=False),
        sa.Column("facts", sa.JSON(), nullable=True),
        sa.Column("digests", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
    )
    op.create_table(
        "task_logs",
        sa.Column("uid", sa.String(length=36), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("end", sa.BigInteger(), nullable=False),
        sa.Column("dropped", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("uid", "attempt", "start", name=op.f("pk_task_logs")),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(length=63), nullable=False),
        sa.Column("uid", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("driver", sa.String(length=20), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("desired", sa.String(length=20), nullable=False),
        sa.Column("node_id", sa.String(length=63), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("starts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("claim_token", sa.String(length=128), nullable=True),
        sa.Column("claim_instance", sa.String(length=128), nullable=True),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("scheduled_at", sa.String(length=32), nullable=True),
        sa.Column("started_at", sa.String(length=32), nullable=True),
        sa.Column("finished_at", sa.String(length=32), nullable=True),
        sa.Column("node_finished_at", sa.String(length=32), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("log_tail", sa.Text(), nullable=True),
        sa.Column("stalled", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("node_lost_since", sa.String(length=32), nullable=True),
        sa.Column("container_id", sa.String(length=128), nullable=True),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("warnings", sa.JSON(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("secrets", sa.LargeBinary(), nullable=True),
        sa.Column("body_digest", sa.String(length=64), nullable=False),
        sa.Column("revision", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("uid", name=op.f("uq_tasks_uid")),
    )
    op.create_index(op.f("ix_tasks_node_id_status"), "tasks", ["node_id", "status"], unique=False)
    op.create_index(op.f("ix_tasks_revision"), "tasks", ["revision"], unique=False)
    op.create_index(
        op.f("ix_tasks_status_priority_created_at"), "tasks", ["status", "priority", "created_at"], unique=False
    )
    op.create_table(
        "tokens",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("hash", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("expires_at", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_tokens")),
        sa.UniqueConstraint("hash", name=op.f("uq_tokens_hash")),
    )
