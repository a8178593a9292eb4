"""The routes of instructions, the same for each channel."""

from __future__ import annotations

from runtime.protocol import routes
from runtime.protocol.instructions import (
    REQUEST_OF,
    Channel,
    Instruction,
    InstructionList,
    InstructionStatus,
    InstructionUpdate,
)
from runtime.server.api.contract.operation import (
    AGENT,
    NODE_QUERY,
    OPERATOR,
    OWN_NODE,
    Operation,
    Parameter,
    comma_list,
    limit,
)


def _instructions(channel: Channel) -> tuple[Operation, ...]:
    theirs, ours = routes.operator_requests(channel.value), routes.agent_requests(channel.value)
    statuses = Parameter("status", comma_list(InstructionStatus), text="one or more, separated by commas")
    name = channel.value
    return (
        Operation(
            "post",
            theirs,
            f"Ask a node for a {name} instruction",
            OPERATOR,
            {201: Instruction},
            body=REQUEST_OF[channel],
            codes=("invalid_task", "node_not_found", "card_in_use"),
        ),
        Operation(
            "get",
            theirs,
            f"List {name} instructions, oldest first",
            OPERATOR,
            {200: InstructionList},
            parameters=(NODE_QUERY, statuses, limit(1000)),
        ),
        Operation(
            "get",
            f"{theirs}/{{id}}",
            f"Read a {name} instruction",
            OPERATOR,
            {200: Instruction},
            codes=("request_not_found",),
        ),
        Operation(
            "post",
            f"{theirs}/{{id}}/cancel",
            f"Take a pending {name} instruction back",
            OPERATOR,
            {202: Instruction},
            codes=("request_not_found", "illegal_transition"),
        ),
        Operation(
            "get",
            ours,
            f"Pull the node's {name} instructions",
            AGENT,
            {200: InstructionList},
            parameters=(OWN_NODE, statuses, limit(1000)),
        ),
        Operation(
            "put",
            f"{ours}/{{id}}",
            f"Claim or report a {name} instruction by compare-and-set",
            AGENT,
            {200: Instruction},
            body=InstructionUpdate,
            codes=("request_not_found", "invalid_task", "illegal_transition", "state_conflict"),
        ),
    )


INSTRUCTIONS = tuple(operation for channel in Channel for operation in _instructions(channel))
