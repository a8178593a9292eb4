"""What is said of a route: its bodies, answers, refusals and parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from runtime.protocol.names import NODE_ID_PATTERN

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


def enum(values: Any) -> Schema:
    return {"type": "string", "enum": [member.value for member in values]}


def comma_list(values: Any) -> Schema:
    words = "|".join(member.value for member in values)
    return {"type": "string", "pattern": f"^({words})(,({words}))*$"}


def limit(most: int) -> Parameter:
    return Parameter("limit", {"type": "integer", "minimum": 1, "maximum": most})


NODE_QUERY = Parameter("node_id", ID)
OWN_NODE = Parameter("node_id", ID, text="the caller's own, where given")
