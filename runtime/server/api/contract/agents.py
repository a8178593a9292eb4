"""The routes that only agents call."""

from __future__ import annotations

from runtime.protocol import routes
from runtime.protocol.heartbeat import Heartbeat, HeartbeatAnswer, PendingCounts, Preflight
from runtime.server.api.contract.operation import AGENT, OWN_NODE, Operation

AGENTS = (
    Operation("get", routes.PREFLIGHT, "The key is right, and this is who answers", AGENT, {200: Preflight}),
    Operation(
        "post",
        routes.HEARTBEAT,
        "A node says how it is and hears what it has to know",
        AGENT,
        {200: HeartbeatAnswer},
        body=Heartbeat,
        codes=("invalid_heartbeat", "node_id_in_use", "instance_cloned", "stale_run"),
    ),
    Operation(
        "get", routes.PENDING, "How much waits for the node", AGENT, {200: PendingCounts}, parameters=(OWN_NODE,)
    ),
)
