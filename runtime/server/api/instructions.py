"""Instructions: operators make, read and cancel them; agents pull, claim and report them."""

from __future__ import annotations

from typing import Any

import flask

from runtime.protocol import routes
from runtime.protocol.codec import encode
from runtime.protocol.instructions import (
    REQUEST_OF,
    Channel,
    InstructionList,
    InstructionStatus,
    InstructionUpdate,
)
from runtime.protocol.times import now
from runtime.server import validation
from runtime.server.api import query
from runtime.server.auth import agent_caller, operator, parts
from runtime.server.services import instructions
from runtime.server.services.tasks.claims import Reporter

blueprint = flask.Blueprint("instructions", __name__)

CHANNELS = "<any(slice, image, file):channel>-requests"
AGENT_LIMIT = 5
LIMIT = 1000


@blueprint.post(f"{routes.API}/{CHANNELS}")
def create(channel: str) -> tuple[flask.Response, int, dict[str, str]]:
    who = operator("admin")
    shape: Any = REQUEST_OF[Channel(channel)]
    request = validation.parse(shape, flask.request.get_data(), code="invalid_task", forbid_unknown=True)
    view = parts().presence.view(request.node_id)
    made = instructions.create(parts().db, Channel(channel), request, who.name, now(), view)
    return flask.jsonify(encode(made)), 201, {"Location": f"{routes.operator_requests(channel)}/{made.id}"}


@blueprint.get(f"{routes.API}/{CHANNELS}")
def listed(channel: str) -> flask.Response:
    operator("viewer")
    return _list(channel, query.text("node_id"), query.choices("status", InstructionStatus), 100, LIMIT)


@blueprint.get(f"{routes.API}/{CHANNELS}/<instruction_id>")
def get(channel: str, instruction_id: str) -> flask.Response:
    operator("viewer")
    with parts().db.read() as connection:
        return flask.jsonify(encode(instructions.get(connection, Channel(channel), instruction_id, now())))


@blueprint.post(f"{routes.API}/{CHANNELS}/<instruction_id>/cancel")
def cancel(channel: str, instruction_id: str) -> tuple[flask.Response, int]:
    who = operator("admin")
    found = instructions.cancel(parts().db, Channel(channel), instruction_id, who.name, now())
    return flask.jsonify(encode(found)), 202


@blueprint.get(f"{routes.API}/agent/{CHANNELS}")
def pull(channel: str) -> flask.Response:
    who = agent_caller()
    statuses = query.choices("status", InstructionStatus) or [InstructionStatus.PENDING]
    return _list(channel, who.node_id, statuses, AGENT_LIMIT, LIMIT)


@blueprint.put(f"{routes.API}/agent/{CHANNELS}/<instruction_id>")
def report(channel: str, instruction_id: str) -> flask.Response:
    who = agent_caller()
    update = validation.parse(InstructionUpdate, flask.request.get_data(), code="invalid_task")
    who.require_scope(update.node_id)
    reporter = Reporter(who.node_id, who.instance_id)
    found = instructions.report(parts().db, Channel(channel), instruction_id, reporter, update, now())
    return flask.jsonify(encode(found))


def _list(
    channel: str, node_id: str | None, statuses: list[InstructionStatus] | None, default: int, most: int
) -> flask.Response:
    limit = query.number("limit", default, 1, most)
    with parts().db.read() as connection:
        found = instructions.listed(
            connection, Channel(channel), now(), node_id=node_id, statuses=statuses, limit=limit
        )
    return flask.jsonify(encode(InstructionList(found)))
