"""The reference for a heartbeat: waitress and a Flask route that only parses the body and answers."""

from __future__ import annotations

import sys

from flask import Flask, Response, request
from waitress import serve

app = Flask(__name__)


@app.post("/api/v1/agent/heartbeat")
def heartbeat() -> Response:
    request.get_json()
    return Response('{"registered":true}', mimetype="application/json")


if __name__ == "__main__":
    host, _, port = sys.argv[1].rpartition(":")
    serve(app, host=host, port=int(port), threads=16, connection_limit=10000, asyncore_use_poll=True)
