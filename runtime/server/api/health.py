"""Is it alive, is it ready, and what it measures."""

from __future__ import annotations

import flask

from runtime.protocol.problems import Problem
from runtime.server import auth

blueprint = flask.Blueprint("health", __name__)


@blueprint.get("/healthz")
def healthz() -> flask.Response:
    """The process answers."""
    return flask.jsonify({"status": "ok"})


@blueprint.get("/readyz")
def readyz() -> flask.Response:
    """Ready to serve. A brake or a database that was put back is said, and is no reason to take it away."""
    parts = auth.parts()
    if not parts.ready.is_set():
        raise Problem("starting", "The control plane is starting or stopping; try again.")
    brake = parts.brake
    return flask.jsonify(
        {
            "status": "ready",
            "control_plane_id": parts.db.control_plane_id,
            "brake": {"on": brake.on, "causes": list(brake.causes), "text": brake.text},
            "rolled_back_since": parts.rollback.since,
            "rolled_back": {"on": parts.rollback.active, "text": parts.rollback.text},
        }
    )


@blueprint.get("/metrics")
def metrics() -> flask.Response:
    """Prometheus text; for operators unless ``metrics_public``."""
    parts = auth.parts()
    if not parts.settings.metrics_public:
        auth.operator()
    text, content_type = parts.metrics.render(parts.presence, braked=parts.brake.on, rolled_back=parts.rollback.active)
    return flask.Response(text, content_type=content_type)
