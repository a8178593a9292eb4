"""What nodes without an agent may fetch without a key: scripts, agent builds and their manifest."""

from __future__ import annotations

import hashlib
import io
from typing import cast

import flask
from werkzeug.exceptions import RequestedRangeNotSatisfiable

from runtime.protocol.manifest import FILE_NAME
from runtime.server import auth
from runtime.server.services import builds

blueprint = flask.Blueprint("distribution", __name__)


@blueprint.get(f"/static/agent/{FILE_NAME}")
def manifest() -> flask.Response:
    """Which builds there are, with sizes and checksums."""
    return _text(_builds().manifest_text(), "application/json")


@blueprint.get("/static/agent")
def agent() -> flask.Response:
    """The agent's file for ``?arch=`` (default amd64); whole, in ranges, or 304."""
    build = _builds().build(flask.request.args.get("arch", "amd64"))
    try:
        answer = flask.send_file(
            build.path,
            mimetype="application/octet-stream",
            as_attachment=True,
            download_name="heterofleet-agent",
            conditional=True,
            etag=build.entry.sha256,
            max_age=0,
        )
    except RequestedRangeNotSatisfiable:
        return flask.Response(status=416, headers={"Content-Range": f"bytes */{build.entry.size}"})
    answer.headers["X-Checksum-Md5"] = build.entry.md5
    answer.headers["X-Checksum-Sha256"] = build.entry.sha256
    return answer


def _serve_script(name: str) -> flask.Response:
    request = flask.request
    url = builds.server_url(auth.parts().settings.public_url, request.scheme, request.environ.get("HTTP_HOST", ""))
    return _text(builds.script(name, url), "text/x-shellscript")


for _name in builds.SCRIPTS:
    blueprint.add_url_rule(
        f"/{_name}", endpoint=_name.replace(".", "-"), view_func=_serve_script, defaults={"name": _name}
    )


def _text(text: str, kind: str) -> flask.Response:
    """A small text, with the same headers as a file: its length, its ETag, ranges."""
    content = text.encode()
    etag = hashlib.sha256(content).hexdigest()
    answer = flask.send_file(io.BytesIO(content), mimetype=kind, conditional=True, etag=etag, max_age=0)
    answer.headers["X-Checksum-Md5"] = hashlib.md5(content, usedforsecurity=False).hexdigest()
    answer.headers["X-Checksum-Sha256"] = etag
    return answer


def _builds() -> builds.Builds:
    """One per application, so that what was checked stays known."""
    return cast(
        builds.Builds,
        flask.current_app.extensions.setdefault("heterofleet.builds", builds.Builds(auth.parts().settings.builds_path)),
    )
