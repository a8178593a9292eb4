"""The Docker driver: containers of ours, by label and full id, over the engine's socket."""

from __future__ import annotations

import base64
import json
import posixpath
import struct
from collections.abc import Iterator
from typing import Any, Callable, Optional

from runtime.agent.drivers.containers import create_body
from runtime.agent.drivers.driver import LABEL_UID, ContainerPlan, EngineFacts, Facts, Seen
from runtime.agent.drivers.engine import DockerEngine
from runtime.agent.drivers.errors import EngineRefused, EngineUnavailable, NotThere
from runtime.agent.drivers.images import DockerImages
from runtime.protocol.times import from_wire

LIST_S = 10.0
CREATE_S = 120.0
START_S = 120.0
REMOVE_S = 120.0
EVENTS_SILENCE_S = 300.0
TAIL_LINES = 16384
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CARDS_VARIABLE = "NVIDIA_VISIBLE_DEVICES="
NO_CARDS = ("", "void", "none", "all")
_NEVER = "0001-01-01"
_GO_DIR = 1 << 31
_GO_LINK = 1 << 27
_FRAME = struct.Struct(">BxxxL")


class DockerDriver:
    """Containers, and the engine's ``images``. Safe to use from many threads; holds no state but the connection.

    ``host`` is the engine's address (``unix:///run/docker.sock``), None for Docker's own default.
    """

    def __init__(self, host: Optional[str] = None) -> None:
        self._engine = DockerEngine(host)
        self.images = DockerImages(self._engine)

    def engine(self) -> EngineFacts:
        """Which engine answers now."""
        info = self._engine.call("GET", "/info", timeout_s=LIST_S)
        return EngineFacts(
            id=info.get("ID") or None,
            version=info.get("ServerVersion") or None,
            runtimes=tuple(sorted(info.get("Runtimes") or ())),
            root_dir=info.get("DockerRootDir") or None,
            live_restore=bool(info.get("LiveRestoreEnabled")),
        )

    def started_at(self) -> Optional[str]:
        """When this run of the engine began, None when it cannot be told.

        No call says so; but the engine makes its default bridge anew at each start, unless containers outlived
        the restart.
        """
        try:
            network = self._engine.call("GET", "/networks/bridge", timeout_s=LIST_S)
        except EngineRefused:
            return None  # switched off on this engine
        return _moment(network.get("Created"))

    def list_own(self) -> list[Seen]:
        """Every container that carries our labels, of this and of other control planes, in one call."""
        rows = self._engine.call(
            "GET",
            "/containers/json",
            params={"all": "1", "filters": json.dumps({"label": [LABEL_UID]})},
            timeout_s=LIST_S,
        )
        return [
            Seen(
                id=row["Id"],
                name=(row.get("Names") or ["/"])[0].lstrip("/"),
                state=row.get("State", ""),
                labels=row.get("Labels") or {},
                created_at=float(row.get("Created") or 0),
            )
            for row in rows
        ]

    def inspect(self, container_id: str) -> Facts:
        """NotThere when the container is gone."""
        return facts_of(self._engine.call("GET", f"/containers/{container_id}/json", timeout_s=LIST_S))

    def create(self, plan: ContainerPlan, spare_name: str) -> str:
        """The new container's full id. When the plan's name is taken, the spare one is used; a conflict over that
        is refused with status 409."""
        body = create_body(plan)
        try:
            return self._create(plan.name, body)
        except EngineRefused as refusal:
            if refusal.status != 409:
                raise
        return self._create(spare_name, body)

    def _create(self, name: str, body: dict[str, Any]) -> str:
        answer = self._engine.call("POST", "/containers/create", params={"name": name}, body=body, timeout_s=CREATE_S)
        return str(answer["Id"])

    def start(self, container_id: str) -> None:
        """Running already counts as started."""
        self._engine.call("POST", f"/containers/{container_id}/start", timeout_s=START_S)

    def signal(self, container_id: str, signal: str) -> bool:
        """Send a signal. False: the container was not running, so the signal reached nobody."""
        try:
            self._engine.call("POST", f"/containers/{container_id}/kill", params={"signal": signal}, timeout_s=LIST_S)
        except EngineRefused as refusal:
            if isinstance(refusal, NotThere) or refusal.status == 409 or "is not running" in refusal.text:
                return False
            raise
        return True

    def remove(self, container_id: str, force: bool = False) -> None:
        """With its anonymous volumes; named volumes and bind mounts stay. Gone already counts as removed."""
        params = {"v": "1", "force": "1"} if force else {"v": "1"}
        try:
            self._engine.call("DELETE", f"/containers/{container_id}", params=params, timeout_s=REMOVE_S)
        except NotThere:
            return

    def missing_program(self, container_id: str) -> Optional[str]:
        """A sentence when the container's program is not there or cannot be run; None when it can, or nobody knows.

        With an init process the engine starts that, and only its exit code tells that the program was missing;
        a program may end with the same code. What lies in the container decides.
        """
        document = self._engine.call("GET", f"/containers/{container_id}/json", timeout_s=LIST_S)
        program = str(document.get("Path") or "")
        config = document.get("Config") or {}
        if not program:
            return None
        if "/" in program:
            places = [posixpath.join(config.get("WorkingDir") or "/", program)]
        else:
            path = next((item[5:] for item in config.get("Env") or () if item.startswith("PATH=")), DEFAULT_PATH)
            places = [posixpath.join(folder, program) for folder in path.split(":") if folder.startswith("/")]
        found = [mode for mode in (self._mode(container_id, place) for place in places) if mode is not None]
        if not found:
            return f'exec: "{program}": no such file or directory'
        if all(mode & _GO_DIR for mode in found):
            return f'exec: "{program}": is a directory'
        if not any(mode & (_GO_LINK | 0o111) for mode in found):
            return f'exec: "{program}": permission denied'
        return None

    def _mode(self, container_id: str, path: str) -> Optional[int]:
        """The file mode (in the engine's bits) of what lies at ``path`` in the container; None: nothing."""
        try:
            response = self._engine.send(
                "HEAD", f"/containers/{container_id}/archive", params={"path": path}, timeout_s=LIST_S
            )
        except NotThere:
            return None
        header = response.headers.get("X-Docker-Container-Path-Stat", "")
        try:
            return int(json.loads(base64.b64decode(header))["mode"])
        except (ValueError, KeyError, TypeError) as error:
            raise EngineUnavailable("the engine's answer about a path has an unknown shape") from error

    def log_tail(self, container_id: str, limit_bytes: int) -> bytes:
        """The last ``limit_bytes`` of standard output and error, as raw bytes, read in pieces."""
        tail = bytearray()
        params = {"stdout": "1", "stderr": "1", "tail": str(TAIL_LINES)}
        for piece in _frames(
            self._engine.stream(self._logs(container_id), params=params, on_open=_ignore, timeout_s=LIST_S)
        ):
            tail += piece
            if len(tail) > 4 * limit_bytes:
                del tail[:-limit_bytes]
        return bytes(tail[-limit_bytes:])

    def log_stream(self, container_id: str, on_open: Callable[[Callable[[], None]], None]) -> Iterator[bytes]:
        """All output from the start on, then what comes, until the container ends or the stream is closed."""
        params = {"stdout": "1", "stderr": "1", "follow": "1", "tail": "all"}
        return _frames(
            self._engine.stream(self._logs(container_id), params=params, on_open=on_open, timeout_s=EVENTS_SILENCE_S)
        )

    def events(self, on_open: Callable[[Callable[[], None]], None]) -> Iterator[str]:
        """The uid of each task whose container started, ended or vanished, as it happens.

        A silence of 5 minutes ends the stream like a lost connection: the caller looks for itself and comes again.
        """
        filters = {"type": ["container"], "label": [LABEL_UID], "event": ["start", "die", "oom", "destroy"]}
        buffer = b""
        for piece in self._engine.stream(
            "/events", params={"filters": json.dumps(filters)}, on_open=on_open, timeout_s=EVENTS_SILENCE_S
        ):
            *lines, buffer = (buffer + piece).split(b"\n")
            for line in lines:
                uid = _event_uid(line)
                if uid:
                    yield uid

    @staticmethod
    def _logs(container_id: str) -> str:
        return f"/containers/{container_id}/logs"


def facts_of(document: dict[str, Any]) -> Facts:
    """An inspection's answer in our words. Pure."""
    state = document.get("State") or {}
    config = document.get("Config") or {}
    host = document.get("HostConfig") or {}
    networks = (document.get("NetworkSettings") or {}).get("Networks") or {}
    addresses = [network.get("IPAddress") for network in networks.values() if network.get("IPAddress")]
    return Facts(
        id=document["Id"],
        name=document.get("Name", "").lstrip("/"),
        state=state.get("Status", ""),
        running=bool(state.get("Running")),
        exit_code=state.get("ExitCode"),
        error=state.get("Error") or "",
        oom_killed=bool(state.get("OOMKilled")),
        started_at=_moment(state.get("StartedAt")),
        finished_at=_moment(state.get("FinishedAt")),
        labels=config.get("Labels") or {},
        pid=int(state.get("Pid") or 0),
        stop_signal=config.get("StopSignal") or "SIGTERM",
        address=addresses[0] if addresses else None,
        network_mode=host.get("NetworkMode", ""),
        cards=_cards(config, host),
    )


def _cards(config: dict[str, Any], host: dict[str, Any]) -> tuple[str, ...]:
    """By the device requests, else by the variable of NVIDIA's runtime."""
    asked = [str(name) for request in host.get("DeviceRequests") or () for name in request.get("DeviceIDs") or ()]
    said = [item[len(CARDS_VARIABLE) :] for item in config.get("Env") or () if item.startswith(CARDS_VARIABLE)]
    words = asked or [word for value in said for word in value.split(",")]
    return tuple(sorted({word for word in words if word not in NO_CARDS}))


def _moment(text: Optional[str]) -> Optional[str]:
    if not text or text.startswith(_NEVER):
        return None
    try:
        from_wire(text)
    except ValueError:
        return None
    return text


def _event_uid(line: bytes) -> str:
    try:
        attributes = json.loads(line)["Actor"]["Attributes"]
        return str(attributes.get(LABEL_UID, ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def _frames(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The payload of the engine's multiplexed log frames, in pieces as they come: a frame is never held whole."""
    buffer = bytearray()
    left = 0
    for piece in pieces:
        buffer += piece
        while buffer:
            if left == 0:
                if len(buffer) < _FRAME.size:
                    break
                kind, left = _FRAME.unpack(bytes(buffer[: _FRAME.size]))
                if kind > 2:
                    raise EngineUnavailable("the engine's log stream has an unknown shape")
                del buffer[: _FRAME.size]
                continue
            payload = bytes(buffer[:left])
            del buffer[:left]
            left -= len(payload)
            if payload:
                yield payload


def _ignore(close: Callable[[], None]) -> None:
    """Nobody ends this stream early: its silence limit does."""
