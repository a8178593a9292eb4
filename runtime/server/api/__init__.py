"""The HTTP API: one blueprint a resource. Each parses, authorises, calls a service, wraps the answer."""

from __future__ import annotations

from runtime.server.api import agent, distribution, events, health, instructions, nodes, openapi, tasks

BLUEPRINTS = (
    agent.blueprint,
    tasks.blueprint,
    instructions.blueprint,
    nodes.blueprint,
    events.blueprint,
    health.blueprint,
    distribution.blueprint,
    openapi.blueprint,
)
