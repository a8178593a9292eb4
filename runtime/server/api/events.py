"""``/api/v1/events``: read by operators, and told by their machines of roll-outs."""

from __future__ import annotations

import flask

from runtime.protocol import routes
from runtime.protocol.codec import encode
from runtime.protocol.nodes import EventKind, EventList, EventReport
from runtime.server import validation
from runtime.server.api.query import choice, number, text
from runtime.server.auth import operator, parts
from runtime.server.services.events import LIMIT, list_events, record

blueprint = flask.Blueprint("events", __name__)

LAST_ID = 2**63 - 1


@blueprint.get(routes.EVENTS)
def events() -> flask.Response:
    operator("viewer")
    after = number("after", 0, 0, LAST_ID)
    limit = number("limit", 100, 1, LIMIT)
    kind = choice("kind", EventKind)
    with parts().db.read() as connection:
        found = list_events(connection, after, text("node"), text("task"), kind, limit)
    return flask.jsonify(encode(EventList(found)))


@blueprint.post(routes.EVENTS)
def told() -> tuple[flask.Response, int]:
    who = operator("admin")
    report = validation.parse(EventReport, flask.request.get_data(), code="invalid_task", forbid_unknown=True)
    return flask.jsonify(encode(record(parts().db, report, who.name))), 201
