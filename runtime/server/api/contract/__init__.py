"""Every route with its bodies, answers and refusals, as data: the OpenAPI document is made from it.

Paths are OpenAPI's (``{id}``); a test holds this table and the application's routes together, both ways.
"""

from __future__ import annotations

from runtime.server.api.contract.agents import AGENTS
from runtime.server.api.contract.instructions import INSTRUCTIONS
from runtime.server.api.contract.nodes import EVENTS, NODES
from runtime.server.api.contract.public import DISTRIBUTION, SYSTEM
from runtime.server.api.contract.tasks import TASKS

OPERATIONS = (*AGENTS, *TASKS, *INSTRUCTIONS, *NODES, *EVENTS, *DISTRIBUTION, *SYSTEM)
