"""What agents call about themselves: preflight, heartbeat, pending counts."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import flask

from runtime.protocol import PROTOCOL, PROTOCOL_MIN, codec, routes, times
from runtime.protocol.build import this_build
from runtime.protocol.heartbeat import STEADY, Follow, Heartbeat, HeartbeatAnswer, LostRevisions, Preflight
from runtime.protocol.problems import Problem
from runtime.server import auth
from runtime.server.parts import Parts
from runtime.server.proxies import PEER
from runtime.server.services.addresses import doorbell_url
from runtime.server.validation import parse

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

blueprint = flask.Blueprint("agent", __name__)

CLOSE = "heterofleet.close_connection"
"""Where the WSGI server leaves a call that ends the connection after this answer, if it can."""


@blueprint.get(routes.PREFLIGHT)
def preflight() -> flask.Response:
    auth.require_system_key()
    db = auth.parts().db
    return flask.jsonify(
        codec.encode(
            Preflight(
                control_plane_id=db.control_plane_id,
                server_version=this_build().version,
                protocol=PROTOCOL,
                protocol_min=PROTOCOL_MIN,
                time=times.to_wire(times.now()),
            )
        )
    )


@blueprint.post(routes.HEARTBEAT)
def heartbeat() -> flask.Response:
    parts = auth.parts()
    request: flask.Request = flask.request._get_current_object()  # type: ignore[attr-defined]
    auth.require_system_key()
    node_id, instance_id = auth.agent_names()
    answer = _take(parts, request.environ, node_id, instance_id, request.get_data(cache=False))
    return flask.Response(answer, content_type="application/json")


class SteadyBeats:
    """WSGI: the beat of a node that is known is answered here, without the framework around it.

    A beat is asked for more than all other calls together, and half of its cost was the way to the route and
    back. Whatever is not plainly good (a refusal, a first beat, an odd header) takes the ordinary way.
    """

    def __init__(self, parts: Parts, application: WSGIApplication) -> None:
        self._parts = parts
        self._application = application

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") == routes.HEARTBEAT and environ.get("REQUEST_METHOD") == "POST":
            answer = self._answer(environ)
            if answer is not None:
                db = self._parts.db
                headers = [
                    ("Content-Type", "application/json"),
                    ("Content-Length", str(len(answer))),
                    (routes.HEADER_CONTROL_PLANE, db.control_plane_id),
                    (routes.HEADER_REVISION, str(db.revision)),
                ]
                start_response("200 OK", headers)
                return [answer]
        return self._application(environ, start_response)

    def _answer(self, environ: WSGIEnvironment) -> bytes | None:
        parts = self._parts
        length = environ.get("CONTENT_LENGTH", "")
        if (
            not parts.ready.is_set()
            or environ.get("CONTENT_TYPE") != "application/json"
            or environ.get("QUERY_STRING")
            or not length.isdigit()
            or int(length) > parts.settings.max_body_bytes
        ):
            return None
        names = auth.plain_agent(parts.settings, environ)
        if names is None or not parts.presence.is_bound(*names):
            return None
        raw = environ["wsgi.input"].read(int(length))
        environ["wsgi.input"] = io.BytesIO(raw)  # for the ordinary way, should it come to that
        try:
            return _take(parts, environ, *names, raw).encode()
        except Exception:
            return None  # refused: the ordinary way comes to the same end, and says it


@blueprint.get(routes.PENDING)
def pending() -> flask.Response:
    caller = auth.agent_caller()
    board = auth.parts().board
    board.refresh()
    return flask.jsonify(codec.encode(board.pending(caller.node_id)))


def _take(parts: Parts, environ: WSGIEnvironment, node_id: str, instance_id: str, raw: bytes) -> str:
    """Take a beat in and return the answer's JSON. Raises Problem."""
    began = time.perf_counter()
    _close_after(parts, environ)
    beat = _parse_beat(raw)
    if beat.node_id != node_id:
        raise Problem("node_scope_mismatch", f"{routes.HEADER_NODE} says {node_id}, the beat says {beat.node_id}.")
    if beat.instance_id != instance_id:
        raise Problem("instance_mismatch", f"{routes.HEADER_INSTANCE} and the beat name different instances.")
    parts.rollback.heard(beat)  # first: also a node that is refused has seen what it has seen
    send_full = parts.presence.record(beat)
    parts.rollback.take(beat)
    answer = _answer(parts, node_id, send_full, environ.get("HTTP_HOST", ""))
    parts.metrics.heartbeat_seconds.observe(time.perf_counter() - began)
    return answer


def _parse_beat(raw: bytes) -> Heartbeat:
    try:
        return parse(Heartbeat, raw, code="invalid_heartbeat")
    except Problem as problem:
        faults: list[dict[str, str]] = problem.members.get("errors", [])
        if [fault["path"] for fault in faults] == ["node_id"]:
            raise Problem("invalid_node_id", problem.detail, errors=faults) from None
        raise


def _answer(parts: Parts, node_id: str, send_full: list[str], host: str) -> str:
    board = parts.board
    board.refresh()
    follow = board.follow(node_id)
    lost = parts.rollback.lost_for(node_id)
    known = (board.version(node_id), host, lost)
    cached = parts.answers.get(node_id)
    if cached is None or cached[0] != known or follow or send_full:
        fixed = _encoded(parts, node_id, follow, send_full, host, lost)
        if not follow and not send_full:
            parts.answers[node_id] = (known, fixed)
    else:
        fixed = cached[1]
    # What moves with every beat goes in front of what stays.
    return f'{{"revision":{parts.db.revision},"time":"{times.to_wire(times.now())}",{fixed}'


def _encoded(
    parts: Parts, node_id: str, follow: list[Follow], send_full: list[str], host: str, lost: LostRevisions | None
) -> str:
    """The answer's members but revision and time, as JSON without the opening brace."""
    board = parts.board
    answer = HeartbeatAnswer(
        registered=True,
        control_plane_id=parts.db.control_plane_id,
        revision=0,
        time="",
        interval_s=parts.settings.heartbeat_interval_s,
        pending=board.pending(node_id),
        intents=board.intents(node_id),
        follow=follow,
        send_full=send_full,
        doorbell=doorbell_url(parts.settings, host),
        lost=lost,
        keeps=list(STEADY),
    )
    body: dict[str, Any] = codec.encode(answer)
    body["intents"] = [codec.encode(intent, drop_none=True) for intent in answer.intents]
    del body["revision"], body["time"]
    if lost is None:
        del body["lost"]
    return json.dumps(body, separators=(",", ":"))[1:]


def _close_after(parts: Parts, environ: WSGIEnvironment) -> None:
    # waitress looks at every open connection on each wake-up: thousands of idle ones cost more than new ones. A
    # proxy in front holds the clients' connections itself, and few of its own.
    close = environ.get(CLOSE)
    if close is not None and not parts.proxies.trusts(environ.get(PEER)):
        close()
