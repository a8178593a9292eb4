"""Which engines are here, and what the running ones serve: looked at in a loop of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Callable, Optional

from runtime.agent.drivers.errors import DriverError
from runtime.agent.engines.running import Server, read_models
from runtime.agent.engines.templates import Template, routes_of, templates_in
from runtime.agent.loop import Loop
from runtime.protocol.heartbeat import DiscoveredModel, Engine

log = logging.getLogger(__name__)

EVERY_BEATS = 20
SOURCE = "image"
_NO_VERSIONS = ("latest", "main", "master", "nightly", "dev", "stable", "server", "server-cuda")


@dataclass(frozen=True)
class EnginesSnapshot:
    """``engines`` None: the images could not be listed, which is not "none". ``served``: models of running tasks."""

    engines: Optional[list[Engine]] = None
    served: list[DiscoveredModel] = field(default_factory=list)


def engines_in(images: Sequence[str], templates: Sequence[Template]) -> list[Engine]:
    """The engines whose reference is among these, letter for letter. Pure."""
    here = set(images)
    return [
        Engine(template.name, version_of(template.image), template.image, SOURCE)
        for template in templates
        if full(template.image) in here
    ]


def full(image: str) -> str:
    """The reference as an engine lists it: without tag and digest it means ``latest``."""
    return image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest"


def version_of(image: str) -> Optional[str]:
    """The tag, where it tells of a version; words that move from one version to the next tell nothing."""
    tag = full(image).rpartition("/")[2].partition("@")[0].partition(":")[2]
    return tag if tag and tag not in _NO_VERSIONS else None


class EngineWatch:
    """Probes at the start and every :data:`EVERY_BEATS` beats; a task that becomes ready is asked within a beat.

    ``images`` lists the references on the container engine and raises DriverError; each probe replaces what the one
    before it found. ``interval`` tells the seconds between beats. :meth:`snapshot` never blocks.
    """

    def __init__(
        self,
        priorities: Mapping[str, Sequence[str]],
        images: Callable[[], list[str]],
        servers: Callable[[], list[Server]],
        *,
        interval: Callable[[], float] = lambda: 5.0,
        on_first: Callable[[], None] = lambda: None,
        read: Callable[[Server], Optional[list[DiscoveredModel]]] = read_models,
    ) -> None:
        self._templates = templates_in(routes_of(priorities))
        self._images = images
        self._servers = servers
        self._interval = interval
        self._on_first = on_first
        self._read = read
        self._lock = threading.Lock()
        self._until_probe = 0
        self._told = False
        self._engines: Optional[list[Engine]] = None
        self._served: dict[str, list[DiscoveredModel]] = {}
        self._asked: dict[str, Optional[bool]] = {}
        self._complaint: Optional[str] = None
        self.loop = Loop("engines", interval(), self.round, deadline_s=900.0)

    def snapshot(self) -> EnginesSnapshot:
        with self._lock:
            served = [model for models in self._served.values() for model in models]
            return EnginesSnapshot(self._engines, served)

    def round(self) -> None:
        """One beat's worth: ask tasks that are new or newly ready; everybody and the images when a probe is due."""
        self.loop.interval_s = self._interval()
        probe = self._until_probe <= 0
        self._until_probe -= 1
        if probe:
            self._probe()
        self._ask(everybody=probe)
        if not self._told:
            self._told = True
            self._on_first()

    def _probe(self) -> None:
        try:
            found: Optional[list[Engine]] = engines_in(self._images(), self._templates)
            self._complaint = None
            self._until_probe = EVERY_BEATS - 1
        except DriverError as error:
            found = None  # asked again with the next beat
            if self._complaint != str(error):
                self._complaint = str(error)
                log.warning("engines: the images cannot be listed: %s", error)
        with self._lock:
            self._engines = found

    def _ask(self, everybody: bool) -> None:
        running = {server.name: server for server in self._servers()}
        asked, served = {}, {}
        for name, server in running.items():
            before = self._served.get(name)
            asked[name] = server.ready
            due = server.ready is not False and (
                everybody or name not in self._asked or self._asked[name] is not server.ready
            )
            models = self._read(server) if due else None
            if models is not None or before is not None:
                served[name] = models if models is not None else before or []
        with self._lock:
            self._asked, self._served = asked, served
