"""Who asks: an agent with the system key, or an operator with a token."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import sqlalchemy as sa
from flask import current_app, request

from runtime.protocol import routes, times
from runtime.protocol.names import is_node_id
from runtime.protocol.problems import Problem
from runtime.server.store import tables

if TYPE_CHECKING:
    from runtime.server.parts import Parts
    from runtime.server.settings import ServerSettings

ROLES = ("viewer", "admin")


def _environ_name(header: str) -> str:
    return "HTTP_" + header.upper().replace("-", "_")


# Read from the environ: a beat needs three headers, and each look through a header object costs.
_API_KEY, _NODE, _INSTANCE = map(_environ_name, (routes.HEADER_API_KEY, routes.HEADER_NODE, routes.HEADER_INSTANCE))


@dataclass(frozen=True)
class AgentCaller:
    """An agent whose key is right and whose instance is the node's own."""

    node_id: str
    instance_id: str

    def require_scope(self, node_id: str | None) -> None:
        """A node id in a query or a body must be the caller's. Raises node_scope_mismatch."""
        if node_id is not None and node_id != self.node_id:
            raise _scope_mismatch(self.node_id, node_id)


@dataclass(frozen=True)
class Operator:
    name: str
    role: str


def parts() -> Parts:
    """The parts of the application that handles this request."""
    return cast("Parts", current_app.extensions["heterofleet"])


def agent_caller() -> AgentCaller:
    """The agent behind this request.

    Raises bad_api_key, operator_token_not_allowed, node_scope_mismatch, invalid_node_id, instance_mismatch.
    """
    require_system_key()
    node_id, instance_id = agent_names()
    bound = parts().presence.bound_instance(node_id)
    if bound is None or bound != instance_id:
        known = "is not registered with this control plane" if bound is None else "is held by another instance"
        raise Problem(
            "instance_mismatch",
            f"Node {node_id} {known}; the agent's next heartbeat settles who holds it.",
        )
    return AgentCaller(node_id, instance_id)


def plain_agent(settings: ServerSettings, environ: Mapping[str, Any]) -> tuple[str, str] | None:
    """(node id, instance id) of a WSGI request with the system key; None when anything is not plainly in order."""
    key, node_id, instance_id = environ.get(_API_KEY), environ.get(_NODE), environ.get(_INSTANCE)
    if not key or not node_id or not instance_id or not is_system_key(settings, key):
        return None
    return node_id, instance_id


def agent_names() -> tuple[str, str]:
    """(node id, instance id) from the headers, present and well formed. For the heartbeat, which binds them."""
    asked = request._get_current_object()  # type: ignore[attr-defined]
    node_id = asked.environ.get(_NODE)
    instance_id = asked.environ.get(_INSTANCE)
    if not node_id:
        raise Problem("node_scope_mismatch", f"The header {routes.HEADER_NODE} is missing; it must name the node.")
    if not is_node_id(node_id):
        raise Problem(
            "invalid_node_id",
            f"The header {routes.HEADER_NODE} holds {node_id[:80]!r}; wanted 1 to 63 lower-case letters, digits "
            "and '-', not at the ends.",
        )
    if not instance_id:
        raise Problem("instance_mismatch", f"The header {routes.HEADER_INSTANCE} is missing.")
    query = asked.args.get("node_id") if asked.query_string else None
    if query is not None and query != node_id:
        raise _scope_mismatch(node_id, query)
    return node_id, instance_id


def require_system_key() -> None:
    """The system key, and not an operator's token, is on this request. Raises bad_api_key and its kin."""
    given = request.environ.get(_API_KEY)
    if given is not None:
        if not is_system_key(parts().settings, given):
            raise bad_api_key()
        return
    if "Authorization" in request.headers:
        _operator_of_token()
        raise Problem(
            "operator_token_not_allowed",
            f"This call is for agents: it takes the system key in {routes.HEADER_API_KEY}, not an operator's token.",
        )
    raise bad_api_key()


def operator(role: str = "viewer") -> Operator:
    """The operator behind this request, with at least ``role``.

    Raises bad_token, agent_key_not_allowed (the system key is no operator), role_not_allowed.
    """
    if "Authorization" not in request.headers and routes.HEADER_API_KEY in request.headers:
        if not is_system_key(parts().settings, request.headers[routes.HEADER_API_KEY]):
            raise bad_api_key()
        raise Problem(
            "agent_key_not_allowed",
            "This call is for operators: it takes 'Authorization: Bearer TOKEN', not the agents' system key.",
        )
    who = _operator_of_token()
    if ROLES.index(who.role) < ROLES.index(role):
        raise Problem("role_not_allowed", f"Token {who.name!r} is a {who.role}; this call wants the role {role}.")
    return who


def either() -> AgentCaller | Operator:
    """An operator where a token is given, else the agent."""
    return _operator_of_token() if "Authorization" in request.headers else agent_caller()


def token_hash(token: str) -> str:
    """What is stored of a token. It is 256 random bits, so a plain hash cannot be turned round."""
    return hashlib.sha256(token.encode()).hexdigest()


def is_system_key(settings: ServerSettings, given: str) -> bool:
    """Whether ``given`` is the system key or the one before it, in a time that tells nothing."""
    keys = [key.encode() for key in (settings.api_key, settings.api_key_previous) if key]
    return any([hmac.compare_digest(given.encode(), key) for key in keys])  # noqa: C419 - all are compared


def bad_api_key() -> Problem:
    """The refusal of a system key."""
    # One text for a missing and a wrong key: the answer gives no hint.
    return Problem(
        "bad_api_key",
        f"The system key in {routes.HEADER_API_KEY} is missing or is not this server's; give the agent the key of the "
        "control plane's settings.",
    )


def _scope_mismatch(own: str, other: str) -> Problem:
    return Problem(
        "node_scope_mismatch",
        f"{routes.HEADER_NODE} says {own}, the request is about {other[:80]}; an agent speaks for its own node only.",
    )


def _operator_of_token() -> Operator:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    refusal = Problem("bad_token", "A valid operator token is wanted: 'Authorization: Bearer TOKEN'.")
    if scheme.lower() != "bearer" or not token.strip():
        raise refusal
    with parts().db.read() as connection:
        row = connection.execute(
            sa.select(tables.tokens).where(tables.tokens.c.hash == token_hash(token.strip()))
        ).first()
    if row is None or (row.expires_at is not None and row.expires_at <= times.to_wire(times.now())):
        raise refusal
    return Operator(row.name, row.role)
