"""The routes of tasks."""

from __future__ import annotations

from runtime.protocol import routes
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
from runtime.server.api.contract.operation import (
    AGENT,
    EITHER,
    FLAG,
    INTEGER,
    NODE_QUERY,
    OPERATOR,
    Operation,
    Parameter,
    comma_list,
    enum,
    limit,
)

_TASK = f"{routes.TASKS}/{{id}}"


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
            Parameter("status", comma_list(Status), text="one or more, separated by commas"),
            NODE_QUERY,
            Parameter("kind", enum(Kind)),
            Parameter("label", {"type": "string"}, text="NAME=VALUE; may be given several times"),
            limit(1000),
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
