"""Images on the engine: what is present letter for letter, and pulls that end when they stop moving."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections import deque
from typing import Any, Callable, Optional
from urllib.parse import quote

from runtime.agent.drivers.docker_answers import names_of, reading
from runtime.agent.drivers.engine import DockerEngine
from runtime.agent.drivers.errors import (
    EngineRefused,
    EngineUnavailable,
    NotThere,
    PullCancelled,
    PullFailed,
    PullStalled,
)
from runtime.agent.drivers.spare import Spare, spare
from runtime.agent.drivers.transport import Keep, lines_of
from runtime.protocol.heartbeat import PullProgress
from runtime.protocol.masking import Masker
from runtime.protocol.names import parse_image_reference
from runtime.protocol.tasks import RegistryAuth

log = logging.getLogger(__name__)

LIST_S = 20.0
TAIL_LINES = 20
TAIL_LINE_CHARS = 300
LAYERS = 1024
"""No image has more; the engine itself refuses those with more than 127."""

_HUB = {"index.docker.io": "docker.io", "registry-1.docker.io": "docker.io"}
_DONE = ("Pull complete", "Already exists", "Download complete")


class DockerImages:
    """The engine's image store."""

    def __init__(
        self, engine: DockerEngine, clock: Callable[[], float] = time.monotonic, keep: Optional[Keep] = None
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._keep = keep

    def present(self, image: str) -> bool:
        """Whether exactly this reference is here: the tag letter for letter, or the digest among the image's
        RepoDigests. A tag beside a digest counts for nothing, as for the engine itself."""
        try:
            document = self._engine.call("GET", f"/images/{quote(image, safe='/:@')}/json", timeout_s=LIST_S)
        except NotThere:
            return False
        wanted = parse_image_reference(image)
        with reading("an image"):
            names = document.get("RepoDigests" if wanted.digest else "RepoTags") or []
            return any(_same(wanted_name, image) for wanted_name in names)

    def list(self) -> list[str]:
        """Every reference on the engine: tags, and digests."""
        return names_of(self._engine.call("GET", "/images/json", timeout_s=LIST_S))

    def spare(self) -> Optional[Spare]:
        """What could be removed to make room; None when the engine could not be asked."""
        return spare(self._engine)

    def pull(self, image: str, auth: Optional[RegistryAuth], stall_s: float, total_s: float) -> DockerPull:
        """A pull that is ready to run; nothing is sent before its ``run``. Credentials go to their registry only."""
        if auth is not None and not is_for(auth, image):
            log.warning("the credentials for %s are not sent to the registry of %s", auth.server, image)
            auth = None
        return DockerPull(self._engine, image, auth, stall_s, total_s, self._clock, self._keep)


def _same(name: str, image: str) -> bool:
    have, want = parse_image_reference(name), parse_image_reference(image)
    if have.pull_name != want.pull_name:
        return False
    return have.digest == want.digest if want.digest else have.tag == want.tag


def is_for(auth: RegistryAuth, image: str) -> bool:
    """Whether these credentials are for the image's registry; scheme and path of ``server`` count for nothing."""
    host = auth.server.partition("://")[2] or auth.server
    host = host.partition("/")[0].lower()
    return parse_image_reference(image).registry.lower() in (host, _HUB.get(host, host))


def registry_header(auth: Optional[RegistryAuth]) -> dict[str, str]:
    """The one header that carries credentials, for this call only."""
    if auth is None:
        return {}
    document = {"username": auth.username, "password": auth.password, "serveraddress": auth.server}
    return {"X-Registry-Auth": base64.urlsafe_b64encode(json.dumps(document).encode()).decode()}


class DockerPull:
    """One attempt at a pull.

    Progress is a change of what the engine says of a layer; a line that repeats itself is none. Whoever owns
    the clock asks ``overdue`` and calls ``give_up``; ``run`` then raises PullStalled with the last lines.
    """

    def __init__(
        self,
        engine: DockerEngine,
        image: str,
        auth: Optional[RegistryAuth],
        stall_s: float,
        total_s: float,
        clock: Callable[[], float],
        keep: Optional[Keep] = None,
    ) -> None:
        self._keep = keep
        self._engine = engine
        self._image = image
        self._auth = auth
        self._stall_s = stall_s
        self._clock = clock
        self._begun = self._moved = clock()
        self._ends = self._begun + total_s
        self._total_s = total_s
        self._layers: dict[str, str] = {}
        self._bytes: dict[str, int] = {}
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        # A registry may say what it was sent; its words are masked before they are cut and handed on.
        self._masker = Masker()
        self._masker.add(auth.password if auth is not None else None)
        self._lock = threading.Lock()
        self._close: Optional[Callable[[], None]] = None
        self._verdict: Optional[str] = None
        self._cause = ""

    @property
    def tail(self) -> tuple[str, ...]:
        """The engine's last lines."""
        return tuple(self._tail)

    def progress(self) -> PullProgress:
        """Layers seen, layers done, bytes downloaded so far."""
        layers = dict(self._layers)
        done = sum(1 for status in layers.values() if status.startswith(_DONE))
        return PullProgress(layers_done=done, layers=len(layers), bytes=sum(self._bytes.values()))

    def overdue(self, now: float) -> Optional[float]:
        """When to ask again (same clock), or None when the pull has used up its time."""
        due = min(self._moved + self._stall_s, self._ends)
        return None if now >= due else due

    def stop_for(self, text: str) -> None:
        """End it for a cause of the node's own: ``run`` raises PullFailed with this text; any thread."""
        self._cause = text
        self._stop("stopped")

    def give_up(self) -> None:
        """End it for lack of progress; any thread."""
        self._stop("stalled")

    def cancel(self) -> None:
        """End it because nobody wants it; any thread."""
        self._stop("cancelled")

    def run(self) -> None:
        """Pull to the end. Raises PullFailed, PullStalled, PullCancelled, EngineUnavailable."""
        self._begun = self._moved = self._clock()
        self._ends = self._begun + self._total_s
        reference = parse_image_reference(self._image)
        version = reference.digest or reference.tag or "latest"
        params = {"fromImage": reference.pull_name, "tag": version}
        error: Optional[str] = None
        try:
            stream = self._engine.stream(
                "/images/create",
                method="POST",
                params=params,
                headers=registry_header(self._auth),
                on_open=self._opened,
                timeout_s=self._total_s + 60.0,
                keep=self._keep,
            )
            for line in lines_of(stream):
                error = self._take(line) or error
        except EngineRefused as refusal:
            error = self._masker.text(refusal.text)
        except EngineUnavailable:
            if self._verdict is None:
                raise
        if self._verdict == "cancelled":
            raise PullCancelled(f"the pull of {self._image} was given up")
        if self._verdict == "stopped":
            raise PullFailed(self._cause, self.tail)
        if self._verdict == "stalled":
            spent = self._clock() - self._begun
            raise PullStalled(
                f"the pull of {self._image} made no progress for {self._stall_s:g} s or ran out of its time "
                f"(after {spent:.0f} s)",
                self.tail,
            )
        if error is not None:
            raise PullFailed(error, self.tail)

    def _opened(self, close: Callable[[], None]) -> None:
        with self._lock:
            self._close = close
            stopped = self._verdict is not None
        if stopped:
            close()

    def _stop(self, verdict: str) -> None:
        with self._lock:
            if self._verdict is None:
                self._verdict = verdict
            close = self._close
        if close is not None:
            close()

    def _take(self, line: bytes) -> Optional[str]:
        """One line of progress; the error's text when it is one."""
        try:
            document: Any = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(document, dict):
            return None
        if document.get("error"):
            error = self._masker.text(str(document["error"]))
            self._tail.append(error[:TAIL_LINE_CHARS])
            return error
        layer, status = str(document.get("id") or ""), str(document.get("status") or "")
        detail = document.get("progressDetail")
        current = detail.get("current") if isinstance(detail, dict) else None
        changed = self._layers.get(layer) != status
        if status == "Downloading" and isinstance(current, int) and current > self._bytes.get(layer, 0):
            self._bytes[layer] = current
            changed = True
        elif isinstance(current, int) and status == "Extracting":
            changed = True
        if changed and not status.startswith("Retrying"):
            self._moved = self._clock()
        if len(self._layers) > LAYERS and layer not in self._layers:
            return None
        if layer and layer != (parse_image_reference(self._image).tag or ""):
            if changed:
                self._tail.append(self._masker.text(f"{layer}: {status}")[:TAIL_LINE_CHARS])
            self._layers[layer] = status
        elif status:
            self._tail.append(self._masker.text(status)[:TAIL_LINE_CHARS])
        return None
