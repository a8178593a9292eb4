"""What nodes without an agent may fetch without a key: scripts, agent builds and their manifest."""

from __future__ import annotations

import io
from typing import cast

import flask

from runtime.artifacts.scripts import SCRIPTS, script
from runtime.protocol.manifest import FILE_NAME, checksums
from runtime.server import auth, files
from runtime.server.services import builds

blueprint = flask.Blueprint("distribution", __name__)


@blueprint.get(f"/static/agent/{FILE_NAME}")
def manifest() -> flask.Response:
    """Which builds there are, with sizes and checksums."""
    return _text(_builds().manifest_text(), "application/json")


@blueprint.get("/static/agent")
def agent() -> flask.Response:
    """The agent's file for ``?arch=`` (default amd64); whole, in ranges, or 304."""
    asked = flask.request.args.getlist("arch") or ["amd64"]
    build = _builds().build(asked[0] if len(set(asked)) == 1 else ",".join(asked))
    answer = files.answer(flask.request.environ, build.opened, build.entry.sums, "application/octet-stream")
    answer.headers["Content-Disposition"] = "attachment; filename=heterofleet-agent"
    return answer


def _serve_script(name: str) -> flask.Response:
    request = flask.request
    url = builds.server_url(auth.parts().settings.public_url, request.scheme, request.environ.get("HTTP_HOST", ""))
    return _text(script(name, url), "text/x-shellscript")


for _name in SCRIPTS:
    blueprint.add_url_rule(
        f"/{_name}", endpoint=_name.replace(".", "-"), view_func=_serve_script, defaults={"name": _name}
    )


def _text(text: str, kind: str) -> flask.Response:
    """A small text, with the same headers as a file: its length, its ETag, ranges."""
    content = text.encode()
    return files.answer(flask.request.environ, io.BytesIO(content), checksums([content]), kind)


def _builds() -> builds.Builds:
    """One per application, so that what was checked stays known."""
    return cast(
        builds.Builds,
        flask.current_app.extensions.setdefault("heterofleet.builds", builds.Builds(auth.parts().settings.builds_path)),
    )
