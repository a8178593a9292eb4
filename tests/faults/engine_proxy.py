"""The proxy between a node's agent and its Docker Engine.

It runs on the machine. Its socket lies in the folder that machine and node share (``/var/lib/hf-lab`` there), so it
outlives power cuts; the engine behind it is looked up for each call, by the node's own socket.
"""

from __future__ import annotations

import os
import re
import select
import socket
import threading

from tests.faults.relay import Call, Relay
from tests.lab import Node, places
from tests.lab.process import LabError

NAME = "engine-proxy.sock"
DOCKER_HOST = f"unix://{places.CARDS_FOLDER}/{NAME}"
"""What the node's agent calls its engine."""
_VERSION = re.compile(r"^/v[0-9.]+(?=/)")
_STREAMS = re.compile(r"/(events|attach|wait|stats|exec/[^/]+/start|images/create|images/load|build)(\?|$)")
_CONTAINER = re.compile(r"^/containers/([0-9a-f]{64})(?=/|\?|$)")
_COLLECTIONS = ("json", "create", "load", "search", "prune")


def kind_of(call: Call) -> str:
    """The engine's words without version, query and names, as in ``POST /containers/{id}/start``."""
    path = _VERSION.sub("", call.path).partition("?")[0]
    room, _, rest = path[1:].partition("/")
    if room == "containers" and rest not in _COLLECTIONS:
        path = "/".join(("/containers/{id}", *rest.split("/")[1:]))
    elif room == "images" and rest not in _COLLECTIONS:
        last = rest.rpartition("/")[2]
        path = "/images/{name}" + (f"/{last}" if last in ("json", "history", "push", "tag") and "/" in rest else "")
    return f"{call.method} {path}"


def container_of(call: Call) -> str | None:
    """The full id of the container that a call is about."""
    found = _CONTAINER.match(_VERSION.sub("", call.path))
    return found.group(1) if found else None


def is_stream(call: Call) -> bool:
    path = _VERSION.sub("", call.path)
    return bool(_STREAMS.search(path)) or ("/logs" in path and "follow=1" in path)


class EngineProxy(Relay):
    """One node's engine, seen through a socket that does what the rules say."""

    def __init__(self, node: Node, name: str = NAME) -> None:
        self.node = node
        self.path = node.cards.path.parent / name
        self.docker_host = f"unix://{places.CARDS_FOLDER}/{name}"
        self._root = _Root(node)
        super().__init__(self._listening, self._connected, kind_of=kind_of, is_stream=is_stream)

    def _listening(self) -> socket.socket:
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen(128)
        return listener

    def _connected(self) -> socket.socket:
        return _to(f"{self._root.path()}/run/docker.sock")

    def close(self) -> None:
        super().close()
        self._root.let_go()
        self.path.unlink(missing_ok=True)


class _Root:
    """A node's root as the machine sees it. After a power cut another process, even another node's first one, may have
    the number that the node's had: both its root and the process itself are held by handles."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._handles: tuple[int, int] | None = None  # the process, its root

    def path(self) -> str:
        """Leads to this node and no other one. Raises ConnectionRefusedError when it is powered off."""
        with self._lock:
            if self._handles is not None and _is_over(self._handles[0]):
                self._let_go()
            if self._handles is None:
                self._handles = self._held()
            return f"/proc/self/fd/{self._handles[1]}"

    def let_go(self) -> None:
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        for handle in self._handles or ():
            os.close(handle)
        self._handles = None

    def _held(self) -> tuple[int, int]:
        try:
            pid = self._node.pid
        except LabError as error:
            raise ConnectionRefusedError(str(error)) from error
        process = os.pidfd_open(pid)
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY)
        return process, root


def _is_over(process: int) -> bool:
    """A handle of a process can be read once it has ended."""
    return bool(select.select([process], [], [], 0)[0])


def _to(path: str) -> socket.socket:
    engine = socket.socket(socket.AF_UNIX)
    engine.settimeout(600)
    try:
        engine.connect(path)
    except OSError:
        engine.close()
        raise
    return engine
