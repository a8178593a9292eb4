"""The routes of nodes, their cards, builds and events."""

from __future__ import annotations

from runtime.protocol import routes
from runtime.protocol.nodes import (
    BuildLedger,
    Card,
    CardHistory,
    CardList,
    CordonRequest,
    DrainRequest,
    Event,
    EventKind,
    EventList,
    EventReport,
    Node,
    NodeList,
    UncordonRequest,
)
from runtime.protocol.why import Why
from runtime.server.api.contract.operation import ID, INTEGER, OPERATOR, Operation, Parameter, enum, limit

_NODE = f"{routes.NODES}/{{id}}"


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
        body_required=False,
        codes=("node_not_found", "invalid_task", "state_conflict"),
    ),
    Operation(
        "post",
        f"{_NODE}/uncordon",
        "Give a node work again",
        OPERATOR,
        {200: Node},
        body=UncordonRequest,
        body_required=False,
        codes=("node_not_found", "invalid_task", "state_conflict"),
    ),
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
    Operation(
        "get",
        f"{_NODE}/why",
        "Why a node takes new work or not, and what its cards lack",
        OPERATOR,
        {200: Why},
        codes=("node_not_found",),
    ),
    Operation("get", routes.GPUS, "List cards and slices", OPERATOR, {200: CardList}),
    Operation("get", f"{routes.GPUS}/{{id}}", "Read a card", OPERATOR, {200: Card}, codes=("gpu_not_found",)),
    Operation(
        "get",
        f"{routes.GPUS}/{{id}}/why",
        "Why a card is given out or not: since when, what was said of it, what would help",
        OPERATOR,
        {200: Why},
        codes=("gpu_not_found",),
    ),
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
            Parameter("kind", enum(EventKind)),
            limit(1000),
        ),
    ),
    Operation(
        "post",
        routes.EVENTS,
        "Tell of a roll-out that begins or has ended",
        OPERATOR,
        {201: Event},
        body=EventReport,
        codes=("invalid_task",),
    ),
)
