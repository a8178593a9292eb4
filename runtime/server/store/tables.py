"""The tables. Times are RFC 3339 text in UTC (sortable, the same on SQLite and PostgreSQL).

Everything an agent compares is (control plane, uid, attempt, claim): those are columns; what only people
read is JSON.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# One row: who this database is, and the revision of its last committed change of tasks and instructions.
control_plane = Table(
    "control_plane",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Column("created_at", String(32), nullable=False),
    Column("rolled_back_since", String(32)),
    Column("lost_from", BigInteger),  # while rolled back: everything above this revision is lost
    Column("lost_spans", JSON),  # [[from, to, [node, ...]], ...]: revisions lost for good, and who has told of them
    Column("release", String(60)),  # the newest release that migrated it: named when an older one is refused
)

tokens = Table(
    "tokens",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("hash", String(128), nullable=False, unique=True),
    Column("role", String(20), nullable=False),
    Column("created_at", String(32), nullable=False),
    Column("expires_at", String(32)),
)

# ``facts`` holds the last full heartbeat sections; it is written in batches, long after the beat was answered.
# The identity columns are written before the first 200 of an instance.
nodes = Table(
    "nodes",
    metadata,
    Column("id", String(63), primary_key=True),
    Column("instance_id", String(128)),
    Column("fingerprint", String(128)),
    Column("boot_id", String(128)),
    Column("boots", JSON),  # {"former": [...], "cloned": [...]}: boot ids that the instance was heard with, newest last
    Column("run", BigInteger, nullable=False, server_default="0"),
    Column("seq", BigInteger, nullable=False, server_default="0"),
    Column("state", String(20), nullable=False),
    Column("leaving", Boolean, nullable=False, server_default="0"),
    Column("registered_at", String(32), nullable=False),
    Column("last_seen_at", String(32)),
    Column("cordon_reason", Text),
    Column("cordon_owner", String(200)),
    Column("cordon_since", String(32)),
    Column("draining", Boolean, nullable=False, server_default="0"),
    Column("drain_deadline", String(32)),
    Column("drain_then", String(20)),
    Column("bad_ends", Integer, nullable=False, server_default="0"),  # hand-backs and infrastructure ends in a row
    Column("bad_cause", String(64)),  # the reason of the last that was counted, and when that was
    Column("bad_cause_at", String(32)),
    Column("facts", JSON),
    Column("digests", JSON),
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", String(63), primary_key=True),
    Column("uid", String(36), nullable=False, unique=True),
    Column("name", String(200), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("driver", String(20), nullable=False),
    Column("status", String(20), nullable=False),
    Column("desired", String(20), nullable=False),
    Column("node_id", String(63)),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("starts", Integer, nullable=False, server_default="0"),
    Column("max_attempts", Integer, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("claim_token", String(128)),
    Column("claim_instance", String(128)),
    Column("created_at", String(32), nullable=False),
    Column("scheduled_at", String(32)),
    Column("started_at", String(32)),
    Column("finished_at", String(32)),
    Column("node_finished_at", String(32)),
    Column("exit_code", Integer),
    Column("reason", String(64)),
    Column("error", Text),
    Column("log_tail", Text),
    Column("stalled", Boolean, nullable=False, server_default="0"),
    Column("node_lost_since", String(32)),
    Column("container_id", String(128)),
    Column("labels", JSON, nullable=False),
    Column("warnings", JSON, nullable=False),
    Column("spec", JSON, nullable=False),  # as accepted, without secret values
    Column("secrets", LargeBinary),  # encrypted: env values and registry_auth; wiped at the end
    Column("body_digest", String(64), nullable=False),  # keyed hash of the body as sent: is a repeated POST equal?
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Column("log_until", String(32)),  # with several server processes: somebody reads its log until then
    Column("attempt_floor", Integer, nullable=False, server_default="0"),  # no later attempt has a number below it
    Index(None, "status", "priority", "created_at"),
    Index(None, "node_id", "status"),
    Index(None, "revision"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("uid", String(36), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("node_id", String(63), nullable=False),
    Column("instance_id", String(128)),
    Column("claim_token", String(128)),
    Column("scheduled_at", String(32), nullable=False),
    Column("claimed_at", String(32)),
    Column("started_at", String(32)),
    Column("ended_at", String(32)),
    Column("node_finished_at", String(32)),
    Column("exit_code", Integer),
    Column("reason", String(64)),
    Column("error", Text),
    Column("container_id", String(128)),
    Column("gpus", JSON, nullable=False),
)

# How often attempts ended for a reason since this database was made, whatever was removed since.
end_counts = Table(
    "end_counts",
    metadata,
    Column("reason", String(64), primary_key=True),
    Column("count", BigInteger, nullable=False),
)

# A card is held by (uid, attempt). whole = slot 0; a slice = its placement; MPS = 1 to n. The unique key makes a
# double booking impossible in the database itself.
gpu_allocations = Table(
    "gpu_allocations",
    metadata,
    Column("node_id", String(63), nullable=False),
    Column("parent_uuid", String(200), nullable=False),
    Column("slot", Integer, nullable=False),
    Column("gpu_uuid", String(200), nullable=False),
    Column("mode", String(10), nullable=False),
    Column("uid", String(36), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("releasing", Boolean, nullable=False, server_default="0"),
    UniqueConstraint("node_id", "parent_uuid", "slot"),
    Index(None, "uid", "attempt"),
)

# A node that handed a task back is left out for that task until then.
exclusions = Table(
    "exclusions",
    metadata,
    Column("uid", String(36), primary_key=True),
    Column("node_id", String(63), primary_key=True),
    Column("until", String(32), nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("time", String(32), nullable=False, index=True),
    Column("kind", String(40), nullable=False),
    Column("code", String(80)),
    Column("node_id", String(63), index=True),
    Column("gpu_uuid", String(200)),
    Column("task_id", String(63), index=True),
    Column("attempt", Integer),
    Column("actor", String(200)),
    Column("detail", Text),
)

# The last LOG_KEEP_BYTES of an attempt's output. ``data`` is the text of raw bytes [start, end) in chunks.
task_logs = Table(
    "task_logs",
    metadata,
    Column("uid", String(36), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("start", BigInteger, primary_key=True),
    Column("end", BigInteger, nullable=False),
    Column("dropped", BigInteger, nullable=False, server_default="0"),
    Column("gap", Boolean, nullable=False, server_default="0"),
    Column("mark", Text),
    Column("data", Text, nullable=False),
)

instructions = Table(
    "instructions",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("channel", String(10), nullable=False),
    Column("node_id", String(63), nullable=False),
    Column("status", String(20), nullable=False),
    Column("request", JSON, nullable=False),
    Column("claim_token", String(128)),
    Column("created_at", String(32), nullable=False),
    Column("expires_at", String(32), nullable=False),
    Column("claimed_at", String(32)),
    Column("finished_at", String(32)),
    Column("result", JSON),
    Column("error", Text),
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Index(None, "node_id", "channel", "status"),
    Index(None, "revision"),
)

# What nodes say of the time that a database which was put back has lost; kept until an operator has accepted it.
# A row in witnesses: this node has lived in that time. ``told_at``: it has said all that it holds.
witnesses = Table(
    "witnesses",
    metadata,
    Column("node_id", String(63), primary_key=True),
    Column("instance_id", String(128)),
    Column("seen_revision", BigInteger, nullable=False),
    Column("lost_from", BigInteger, nullable=False),
    Column("lost_to", BigInteger),
    Column("heard_at", String(32), nullable=False),
    Column("told_at", String(32)),
    Column("complete", Boolean, nullable=False, server_default="0"),
    Column("claims", JSON),  # [[uid, attempt], ...] that it holds
)

orphans = Table(
    "orphans",
    metadata,
    Column("node_id", String(63), primary_key=True),
    Column("uid", String(36), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("facts", JSON, nullable=False),  # the entry as it was told
)
