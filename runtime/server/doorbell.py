"""The doorbell: held requests that tell an agent at once that there is something for it.

It carries no state: a client that loses it, or never had it, learns the same from its next heartbeat. It is a
small asyncio server in a thread of its own, since a held request would cost the main server a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import threading
from collections import defaultdict
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from runtime.protocol import routes
from runtime.protocol.problems import MEDIA_TYPE, Problem
from runtime.server.auth import bad_api_key, is_system_key
from runtime.server.parts import Parts
from runtime.server.serving import bind

log = logging.getLogger(__name__)

COMMENT_EVERY_S = 15.0
KEEP_ALIVE_S = 75
STOP_S = 5.0


class Bells:
    """Which open connections wait for which node. Lives in the event loop's thread, but for :meth:`ring`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[str, set[asyncio.Queue[frozenset[str] | None]]] = defaultdict(set)
        self._closed = False

    def attach(self) -> None:
        self._loop = asyncio.get_running_loop()

    def ring(self, changed: dict[str, frozenset[str]]) -> None:
        """Node id -> channels with something new. From any thread."""
        if self._loop is not None and not self._closed:
            try:
                self._loop.call_soon_threadsafe(self._deliver, changed)
            except RuntimeError:
                pass  # the loop has just ended; nobody waits any more

    def close(self) -> None:
        """End every stream, so that the server can stop. From any thread."""
        self._closed = True
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._end)
            except RuntimeError:
                pass

    def listen(self, node_id: str) -> asyncio.Queue[frozenset[str] | None]:
        bell: asyncio.Queue[frozenset[str] | None] = asyncio.Queue()
        self._waiting[node_id].add(bell)
        return bell

    def leave(self, node_id: str, bell: asyncio.Queue[frozenset[str] | None]) -> None:
        self._waiting[node_id].discard(bell)
        if not self._waiting[node_id]:
            del self._waiting[node_id]

    def _deliver(self, changed: dict[str, frozenset[str]]) -> None:
        for node_id, channels in changed.items():
            for bell in self._waiting.get(node_id, ()):
                bell.put_nowait(channels)

    def _end(self) -> None:
        for bells in self._waiting.values():
            for bell in bells:
                bell.put_nowait(None)


class Doorbell:
    """The doorbell's server. Takes the address in the constructor; raises ListenError."""

    def __init__(self, parts: Parts) -> None:
        self._socket: socket.socket = bind(parts.settings.doorbell_listen, "doorbell_listen")
        self.port: int = self._socket.getsockname()[1]
        self._bells = Bells()
        parts.board.on_change(self._bells.ring)
        config = uvicorn.Config(
            doorbell_app(parts, self._bells),
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_keep_alive=KEEP_ALIVE_S,
            limit_concurrency=parts.settings.connection_limit,
            timeout_graceful_shutdown=int(STOP_S),
            server_header=False,
            ws="none",
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="doorbell", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the streams and the thread."""
        self._bells.close()
        self._server.should_exit = True
        self._thread.join(2 * STOP_S)
        self._socket.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))


def doorbell_app(parts: Parts, bells: Bells) -> Starlette:
    """The ASGI application: one route."""

    async def doorbell(request: Request) -> Response:
        problem = _refusal(parts, request)
        if problem is not None:
            return _problem(parts, problem)
        node_id = request.headers[routes.HEADER_NODE]
        return StreamingResponse(
            _stream(bells, node_id),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **_signature(parts)},
        )

    async def not_found(request: Request, _error: Exception) -> Response:
        return _problem(parts, Problem("route_not_found", f"There is nothing at {request.url.path[:200]}."))

    async def not_allowed(request: Request, _error: Exception) -> Response:
        refusal = _problem(
            parts, Problem("method_not_allowed", f"{request.method} is not for this path; it takes GET.")
        )
        refusal.headers["Allow"] = "GET"
        return refusal

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        bells.attach()
        yield

    return Starlette(
        routes=[Route(routes.DOORBELL, doorbell, methods=["GET"])],
        exception_handlers={404: not_found, 405: not_allowed},
        lifespan=lifespan,
    )


async def _stream(bells: Bells, node_id: str) -> AsyncIterator[str]:
    bell = bells.listen(node_id)
    try:
        yield ": hello\n\n"
        while True:
            try:
                channels = await asyncio.wait_for(bell.get(), COMMENT_EVERY_S)
            except asyncio.TimeoutError:
                yield ": still here\n\n"
                continue
            if channels is None:
                return
            wanted = set(channels)
            while not bell.empty():
                more = bell.get_nowait()
                if more is None:
                    return
                wanted |= more
            yield f"event: wake\ndata: {json.dumps({'channels': sorted(wanted)})}\n\n"
    finally:
        bells.leave(node_id, bell)


def _refusal(parts: Parts, request: Request) -> Problem | None:
    if not is_system_key(parts.settings, request.headers.get(routes.HEADER_API_KEY, "")):
        return bad_api_key()
    if not parts.ready.is_set():
        return Problem("starting", "The control plane is starting or stopping; try again.", retry_after=2)
    node_id = request.headers.get(routes.HEADER_NODE, "")
    if request.query_params.get("node_id", node_id) != node_id:
        return Problem("node_scope_mismatch", "The header and the query name different nodes.")
    bound = parts.presence.held(node_id)
    if bound is None or bound.instance_id != request.headers.get(routes.HEADER_INSTANCE):
        return Problem("instance_mismatch", "The node is not registered, or another instance holds it.")
    return None


def _problem(parts: Parts, problem: Problem) -> Response:
    headers = _signature(parts)
    if problem.retry_after is not None:
        headers["Retry-After"] = str(problem.retry_after)
    return JSONResponse(
        problem.document(parts.db.control_plane_id or None), problem.status, headers, media_type=MEDIA_TYPE
    )


def _signature(parts: Parts) -> dict[str, str]:
    return {
        routes.HEADER_CONTROL_PLANE: parts.db.control_plane_id,
        routes.HEADER_REVISION: str(parts.db.revision),
    }
