"""The Flask application: blueprints, what is true of every answer, and every refusal as a problem document."""

from __future__ import annotations

import atexit
import functools
import json
import logging
import random

import flask
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException, MethodNotAllowed, RequestEntityTooLarge

from runtime.protocol import routes
from runtime.protocol.problems import MEDIA_TYPE, Problem
from runtime.server import auth
from runtime.server.api import agent, distribution, events, health, instructions, nodes, openapi, tasks
from runtime.server.parts import Parts, build_parts
from runtime.server.settings import ServerSettings, with_keys

log = logging.getLogger(__name__)

BLUEPRINTS = (
    health.blueprint,
    agent.blueprint,
    nodes.blueprint,
    tasks.blueprint,
    instructions.blueprint,
    events.blueprint,
    openapi.blueprint,
    distribution.blueprint,
)
ALWAYS_ANSWERED = frozenset({"/healthz", "/readyz"})
"""Paths that answer before the database is ready."""
RETRY_AFTER_S = (1, 5)
"""A 503 without a time of its own asks for a random one, so that a fleet does not come back in step."""


def create_app(settings: ServerSettings) -> flask.Flask:
    """A whole control plane, started, as an application that any WSGI server may serve.

    It ends with the process. ``heterofleet server run`` answers from the first moment on and has an end of its
    own; it builds the parts itself and calls :func:`assemble`. Raises SettingsError and StoreError.
    """
    parts = build_parts(with_keys(settings)[0])
    parts.start()
    atexit.register(parts.stop)
    return assemble(parts)


def assemble(parts: Parts) -> flask.Flask:
    """The application over ``parts``, which may be started before or after."""
    app = flask.Flask(__name__, static_folder=None)
    app.extensions["heterofleet"] = parts
    app.config["MAX_CONTENT_LENGTH"] = parts.settings.max_body_bytes
    app.url_map.strict_slashes = False
    # A redirect would take a client's credential somewhere else: a path is right or not found.
    app.url_map.merge_slashes = False
    app.url_map.redirect_defaults = False
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.json.compact = True  # type: ignore[attr-defined]
    # Bound to the parts, not looked up through Flask's proxies: both run for every heartbeat.
    app.before_request(functools.partial(_check_request, parts))
    app.after_request(functools.partial(_sign, parts))
    app.register_error_handler(Problem, _refuse)
    app.register_error_handler(HTTPException, _refuse_http)
    app.register_error_handler(Exception, _fail)
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint)
    app.wsgi_app = parts.proxies.wrap(agent.SteadyBeats(parts, app.wsgi_app))  # type: ignore[method-assign,assignment]
    return app


def _check_request(parts: Parts) -> None:
    # The object behind the proxy: this runs before every heartbeat, and each look through the proxy costs.
    request = flask.request._get_current_object()  # type: ignore[attr-defined]
    if not parts.ready.is_set() and request.path not in ALWAYS_ANSWERED:
        raise Problem("starting", "The control plane is starting or stopping; try again.")
    if request.method in ("GET", "HEAD"):
        return
    length = request.content_length
    if length is not None and length > parts.settings.max_body_bytes:
        raise _too_large()
    if request.environ.get("CONTENT_TYPE") == "application/json":
        return
    if (length or request.headers.get("Transfer-Encoding")) and not request.is_json and request.url_rule is not None:
        given = request.mimetype or "none"
        raise Problem("unsupported_media_type", f"The body's type is {given[:80]}; wanted application/json.")


def _sign(parts: Parts, response: flask.Response) -> flask.Response:
    db = parts.db
    # add, not set: nobody else writes them, and set looks through all headers first.
    response.headers.add(routes.HEADER_CONTROL_PLANE, db.control_plane_id)
    response.headers.add(routes.HEADER_REVISION, str(db.revision))
    return response


def _refuse(problem: Problem) -> flask.Response:
    response = _document(problem.document(auth.parts().db.control_plane_id or None), problem.status)
    retry_after = problem.retry_after
    if problem.status == 503 and retry_after is None:
        retry_after = random.randint(*RETRY_AFTER_S)  # noqa: S311 - spread, not secrecy
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    if problem.status == 401:
        scheme = "Bearer" if problem.code == "bad_token" else "SystemKey"
        response.headers["WWW-Authenticate"] = f'{scheme} realm="heterofleet"'
    return response


def _refuse_http(error: HTTPException) -> ResponseReturnValue:
    path = flask.request.path[:200]
    if isinstance(error, MethodNotAllowed):
        allowed = ", ".join(sorted(error.valid_methods or ()))
        detail = f"{flask.request.method} is not for {path}; it takes {allowed}."
        response = _refuse(Problem("method_not_allowed", detail))
        response.headers["Allow"] = allowed
        return response
    if isinstance(error, RequestEntityTooLarge):
        return _refuse(_too_large())
    if error.code == 404:
        return _refuse(Problem("route_not_found", f"There is nothing at {path}."))
    if error.code == 415:
        return _refuse(Problem("unsupported_media_type", "Wanted a body of type application/json."))
    if error.code is not None and 400 <= error.code < 500:
        return _refuse(Problem("bad_parameter", error.description or "The request is malformed."))
    return _fail(error)


def _fail(error: Exception) -> flask.Response:
    # Nothing that a client sends may end here; when it does, it is our fault, and it is said without detail.
    log.error("%s %s failed", flask.request.method, flask.request.path, exc_info=error)
    return _document(
        {
            "type": "urn:heterofleet:problem:internal_error",
            "title": "Internal error",
            "status": 500,
            "detail": "The control plane failed on this request; its log has the reason.",
            "code": "internal_error",
            "control_plane_id": auth.parts().db.control_plane_id or None,
        },
        500,
    )


def _document(document: dict[str, object], status: int) -> flask.Response:
    return flask.Response(json.dumps(document), status, content_type=MEDIA_TYPE)


def _too_large() -> Problem:
    limit = auth.parts().settings.max_body_mib
    return Problem(
        "body_too_large", f"The body is larger than {limit:g} MiB; send less, or raise max_body_mib.", limit_mib=limit
    )
