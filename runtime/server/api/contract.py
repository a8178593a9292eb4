"""Every route with its bodies, answers and refusals, as data: the OpenAPI document is made from it.

Paths are OpenAPI's (``{id}``); a test holds this table and the application's routes together, both ways.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from runtime.artifacts.scripts import SCRIPTS
from runtime.protocol import routes
from runtime.protocol.heartbeat import Heartbeat, HeartbeatAnswer, PendingCounts, Preflight
from runtime.protocol.instructions import (
    REQUEST_OF,
    Channel,
    Instruction,
    InstructionList,
    InstructionStatus,
    InstructionUpdate,
)
from runtime.protocol.names import NODE_ID_PATTERN
from runtime.protocol.nodes import (
    BuildLedger,
    Card,
    CardHistory,
    CardList,
    CordonRequest,
    DrainRequest,
    EventKind,
    EventList,
    Node,
    NodeList,
)
from runtime.protocol.states import Kind, Status
from runtime.protocol.tasks import (
    CheckpointResume,
    LogChunk,
    LogText,
    Reclaim,
    Task,
    TaskList,
    TaskSpec,
    TaskUpdate,
)
from runtime.protocol.why import Why

Schema = dict[str, Any]

AGENT = ("systemKey",)
OPERATOR = ("operatorToken",)
EITHER = ("systemKey", "operatorToken")
PUBLIC: tuple[str, ...] = ()

ALWAYS = ("bad_parameter", "overloaded", "database_busy", "starting")
AS_AGENT = (
    "bad_api_key",
    "bad_token",
    "operator_token_not_allowed",
    "node_scope_mismatch",
    "instance_mismatch",
    "invalid_node_id",
)
AS_OPERATOR = ("bad_token", "bad_api_key", "agent_key_not_allowed", "role_not_allowed")
WITH_BODY = ("malformed_json", "body_too_large", "unsupported_media_type")


@dataclass(frozen=True)
class Parameter:
    name: str
    schema: Schema
    where: str = "query"
    required: bool = False
    text: str = ""


@dataclass(frozen=True)
class Operation:
    """``answers``: status -> (dataclass, None for no body, or a media type for what is not JSON)."""

    method: str
    path: str
    summary: str
    who: tuple[str, ...]
    answers: dict[int, Any]
    body: Any = None
    body_required: bool = True
    codes: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = field(default=())


ANY: Schema = {"type": "object"}
INTEGER: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "string", "enum": ["true", "false", "1", "0", ""]}
ID: Schema = {"type": "string", "pattern": f"^{NODE_ID_PATTERN}$"}


def _enum(values: Any) -> Schema:
    return {"type": "string", "enum": [member.value for member in values]}


def _comma_list(values: Any) -> Schema:
    words = "|".join(member.value for member in values)
    return {"type": "string", "pattern": f"^({words})(,({words}))*$"}


def _limit(most: int) -> Parameter:
    return Parameter("limit", {"type": "integer", "minimum": 1, "maximum": most})


NODE_QUERY = Parameter("node_id", ID)
OWN_NODE = Parameter("node_id", ID, text="the caller's own, where given")

_TASK = f"{routes.TASKS}/{{id}}"
_NODE = f"{routes.NODES}/{{id}}"

TASKS = (
    Operation(
        "post",
        routes.TASKS,
        "Create a task; 200 when the same body was sent under this id before",
        OPERATOR,
        {201: Task, 200: Task},
        body=TaskSpec,
        codes=("invalid_task", "vendor_required", "task_exists"),
    ),
    Operation(
        "get",
        routes.TASKS,
        "List tasks, newest first; with the system key the node's own, in the order in which they should start",
        EITHER,
        {200: TaskList},
        codes=("node_scope_required",),
        parameters=(
            Parameter("status", _comma_list(Status), text="one or more, separated by commas"),
            NODE_QUERY,
            Parameter("kind", _enum(Kind)),
            Parameter("label", {"type": "string"}, text="NAME=VALUE; may be given several times"),
            _limit(1000),
            Parameter("cursor", {"type": "string"}, text="next_cursor of the page before"),
        ),
    ),
    Operation(
        "get",
        _TASK,
        "Read a task; its secrets come with the claim's own token only",
        EITHER,
        {200: Task},
        codes=("task_not_found", "database_rolled_back"),
        parameters=(Parameter(routes.HEADER_CLAIM, {"type": "string"}, "header"),),
    ),
    Operation(
        "get",
        f"{_TASK}/why",
        "Why a task is where it is: every constraint on every node, the nearest miss first",
        OPERATOR,
        {200: Why},
        codes=("task_not_found",),
    ),
    Operation(
        "put",
        _TASK,
        "Change a task's status by compare-and-set, as the node that holds it",
        AGENT,
        {200: Task},
        body=TaskUpdate,
        codes=(
            "task_not_found",
            "database_rolled_back",
            "invalid_task",
            "illegal_transition",
            "state_conflict",
            "cards_not_allocated",
        ),
    ),
    Operation(
        "delete",
        _TASK,
        "Delete a task: at once, or (202) when its node has said that the container is gone",
        OPERATOR,
        {204: None, 202: Task},
        codes=("task_not_found",),
        parameters=(Parameter("force", FLAG, text="drop the row now, whatever runs"),),
    ),
    *(
        Operation(
            "post",
            f"{_TASK}/{action}",
            summary,
            OPERATOR,
            {202: Task},
            codes=("task_not_found", "not_running", "illegal_transition"),
        )
        for action, summary in (
            ("stop", "Stop a task; what no node has claimed is cancelled at once"),
            ("sleep", "Stop a running task's container, keep it, and free its cards"),
            ("wake", "Let a sleeping task run again on the same cards"),
            ("reschedule", "Take a task from its node and place it again"),
        )
    ),
    Operation(
        "post",
        f"{_TASK}/reclaim",
        "Take the own claim back after the journal was lost",
        AGENT,
        {200: Task},
        body=Reclaim,
        codes=("task_not_found", "database_rolled_back", "invalid_task", "state_conflict"),
    ),
    Operation(
        "post",
        f"{_TASK}/logs",
        "Append output by raw byte position",
        AGENT,
        {204: None},
        body=LogChunk,
        codes=("task_not_found", "database_rolled_back", "invalid_task", "state_conflict", "log_offset"),
    ),
    Operation(
        "get",
        f"{_TASK}/logs",
        "Read what is held of an attempt's output",
        OPERATOR,
        {200: LogText},
        codes=("task_not_found",),
        parameters=(
            Parameter("attempt", {**INTEGER, "maximum": 2**31 - 1}, text="default: the newest"),
            Parameter("from", {**INTEGER, "maximum": 2**53}, text="raw byte position to begin at"),
            Parameter("tail", {**INTEGER, "maximum": 2**31 - 1}, text="only so many last lines"),
            Parameter("follow", FLAG, text="ask the node to send live for the next half minute"),
        ),
    ),
    Operation(
        "post",
        f"{_TASK}/checkpoint-resume",
        "Say from which checkpoint an attempt goes on, or went on",
        AGENT,
        {204: None},
        body=CheckpointResume,
        codes=("task_not_found", "database_rolled_back", "invalid_task", "state_conflict"),
    ),
)

EVENTS = (
    Operation(
        "get",
        routes.EVENTS,
        "What happened, oldest first",
        OPERATOR,
        {200: EventList},
        parameters=(
            Parameter("after", {**INTEGER, "maximum": 2**63 - 1}, text="id of the last event that is known"),
            Parameter("node", ID),
            Parameter("task", ID),
            Parameter("kind", _enum(EventKind)),
            _limit(1000),
        ),
    ),
)


def _instructions(channel: Channel) -> tuple[Operation, ...]:
    theirs, ours = routes.operator_requests(channel.value), routes.agent_requests(channel.value)
    statuses = Parameter("status", _comma_list(InstructionStatus), text="one or more, separated by commas")
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
            parameters=(NODE_QUERY, statuses, _limit(1000)),
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
            parameters=(OWN_NODE, statuses, _limit(1000)),
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

NODES = (
    Operation("get", routes.NODES, "List nodes", OPERATOR, {200: NodeList}),
    Operation("get", _NODE, "Read a node", OPERATOR, {200: Node}, codes=("node_not_found",)),
    Operation(
        "delete",
        _NODE,
        "Forget a node that is not online and holds nothing",
        OPERATOR,
        {204: None},
        codes=("node_not_found", "node_online", "node_has_tasks"),
    ),
    Operation(
        "post",
        f"{_NODE}/cordon",
        "Give a node no new work",
        OPERATOR,
        {200: Node},
        body=CordonRequest,
        codes=("node_not_found", "invalid_task"),
    ),
    Operation("post", f"{_NODE}/uncordon", "Give a node work again", OPERATOR, {200: Node}, codes=("node_not_found",)),
    Operation(
        "post",
        f"{_NODE}/drain",
        "Cordon a node and say what happens to its work at the deadline",
        OPERATOR,
        {200: Node},
        body=DrainRequest,
        body_required=False,
        codes=("node_not_found", "invalid_task"),
    ),
    Operation(
        "post",
        f"{_NODE}/release",
        "Let another machine take over the node id",
        OPERATOR,
        {200: Node},
        codes=("node_not_found", "node_online"),
    ),
    Operation("get", routes.GPUS, "List cards and slices", OPERATOR, {200: CardList}),
    Operation("get", f"{routes.GPUS}/{{id}}", "Read a card", OPERATOR, {200: Card}, codes=("gpu_not_found",)),
    Operation(
        "get",
        f"{routes.GPUS}/{{id}}/history",
        "What a card measured over the last day, minute by minute",
        OPERATOR,
        {200: CardHistory},
        codes=("gpu_not_found",),
    ),
    Operation("get", routes.BUILDS, "How many nodes run which build", OPERATOR, {200: BuildLedger}),
)

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

ARCH = Parameter("arch", {"type": "string"}, text="amd64 (the default) or arm64")

DISTRIBUTION = (
    Operation(
        "get",
        "/static/agent",
        "The agent's file of one architecture: whole, in ranges, or 304",
        PUBLIC,
        {200: "application/octet-stream", 206: "application/octet-stream", 304: None},
        codes=("unknown_arch", "agent_build_missing"),
        parameters=(ARCH,),
    ),
    Operation(
        "get",
        "/static/agent/manifest.json",
        "Which builds there are, with sizes and checksums",
        PUBLIC,
        {200: ANY, 206: ANY, 304: None},
        codes=("agent_build_missing",),
    ),
    *(
        Operation(
            "get",
            f"/{name}",
            f"The script {name}, made for this server's address",
            PUBLIC,
            {200: "text/x-shellscript", 206: "text/x-shellscript", 304: None},
        )
        for name in SCRIPTS
    ),
)

SYSTEM = (
    Operation("get", "/openapi.json", "This document", PUBLIC, {200: ANY}),
    Operation("get", "/healthz", "The process answers", PUBLIC, {200: ANY}),
    Operation("get", "/readyz", "Ready to serve, with the brake's state", PUBLIC, {200: ANY}),
    Operation("get", "/metrics", "Prometheus text", OPERATOR, {200: "text/plain"}),
)

OPERATIONS = (*AGENTS, *TASKS, *INSTRUCTIONS, *NODES, *EVENTS, *DISTRIBUTION, *SYSTEM)
