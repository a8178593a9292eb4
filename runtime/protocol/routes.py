"""Paths of the API that agent, command line and server share. ``{id}`` is percent-encoded by the caller."""

from __future__ import annotations

API = "/api/v1"
PREFLIGHT = f"{API}/agent/preflight"
HEARTBEAT = f"{API}/agent/heartbeat"
PENDING = f"{API}/agent/pending"
DOORBELL = f"{API}/agent/doorbell"
TASKS = f"{API}/tasks"
NODES = f"{API}/nodes"
GPUS = f"{API}/gpus"
EVENTS = f"{API}/events"
BUILDS = f"{API}/builds"

HEADER_API_KEY = "X-API-Key"
HEADER_NODE = "X-Node-Id"
HEADER_INSTANCE = "X-Instance-Id"
HEADER_CLAIM = "X-Claim-Token"
HEADER_CONTROL_PLANE = "X-Control-Plane-Id"
HEADER_REVISION = "X-Revision"


def agent_requests(channel: str) -> str:
    """Where an agent pulls and reports the instructions of a channel."""
    return f"{API}/agent/{channel}-requests"


def operator_requests(channel: str) -> str:
    """Where an operator makes and reads the instructions of a channel."""
    return f"{API}/{channel}-requests"
