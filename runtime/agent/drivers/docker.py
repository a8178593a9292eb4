"""The Docker driver: containers of ours, by label and full id, over the engine's socket."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import posixpath
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Optional

from runtime.agent.drivers.containers import create_body
from runtime.agent.drivers.docker_answers import (
    bridge_made_at,
    created_of,
    engine_of,
    event_of,
    facts_of,
    listing_of,
    reading,
    signalled_before_end,
    stat_of,
)
from runtime.agent.drivers.docker_logs import DockerLogs
from runtime.agent.drivers.driver import (
    DEFAULT_PATH,
    LABEL_ATTEMPT,
    LABEL_CLAIM,
    LABEL_UID,
    ContainerPlan,
    EngineFacts,
    Facts,
    RunTimes,
    Seen,
)
from runtime.agent.drivers.engine import DockerEngine
from runtime.agent.drivers.engine_unit import unit_times
from runtime.agent.drivers.errors import EngineRefused, NotThere
from runtime.agent.drivers.images import DockerImages
from runtime.agent.drivers.output import LogPiece, LogRest
from runtime.agent.drivers.transport import Keep, lines_of
from runtime.agent.drivers.witness import Witness
from runtime.protocol.times import from_wire

LIST_S = 10.0
CREATE_S = 120.0
START_S = 120.0
REMOVE_S = 120.0
EVENTS_SILENCE_S = 300.0
EVENTS = ("start", "kill", "die", "oom", "destroy", "update")
UNIX = "unix://"
DEFAULT_HOST = "unix:///var/run/docker.sock"
DEFAULT_HOSTS = (None, DEFAULT_HOST, "unix:///run/docker.sock")
TRACES = ("/var/lib/docker", "/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd", "/opt/bin/dockerd",
          "/snap/bin/docker.dockerd", "/var/snap/docker")  # fmt: skip
"""Where Docker's own installations lie, and what they keep."""
UNIT_SLACK_S = 2.0
EXIT_KILLED = 137
"""What a kill -9 leaves, whether for memory or by hand."""
STAT_HEADER = "X-Docker-Container-Path-Stat"
_SAME_CLAIM = (LABEL_UID, LABEL_ATTEMPT, LABEL_CLAIM)
_GO_DIR = 1 << 31
_GO_LINK = 1 << 27


class DockerDriver:
    """Containers, and the engine's ``images``. Safe to use from many threads; holds no state but the connection, and
    what the engine told of ends as they happened.

    ``host`` is the engine's address (``unix:///run/docker.sock``), None for Docker's own default. ``keep_pull`` gets
    the descriptor of each pull's connection, and returns what ends it (see :mod:`runtime.agent.handover`).
    """

    confined = True
    outlives_machine = True

    def __init__(self, host: Optional[str] = None, keep_pull: Optional[Keep] = None) -> None:
        self._engine = DockerEngine(host)
        self._host = host
        self._is_default = host in DEFAULT_HOSTS
        self._witness = Witness()
        self.images = DockerImages(self._engine, keep=keep_pull)
        self._logs = DockerLogs(self._engine)

    def has_traces(self) -> bool:
        """Whether there may be an engine, be it stopped: its containers may outlive it."""
        host = self._host or DEFAULT_HOST
        places = [host[len(UNIX) :]] if host.startswith(UNIX) else []
        if self._is_default:
            places += TRACES
        return not places or any(os.path.lexists(place) for place in places)

    def engine(self) -> EngineFacts:
        """Which engine answers now."""
        return engine_of(self._engine.call("GET", "/info", timeout_s=LIST_S))

    def wall(self) -> float:
        """The clock by which the engine dates, in seconds since the epoch."""
        return self._engine.wall()

    def started_at(self) -> Optional[str]:
        """When this run of the engine began, None when it cannot be told.

        No call says so; but the engine makes its default bridge anew at each start, unless containers outlived
        the restart. Never answered by an engine that is going down: EngineUnavailable.
        """
        try:
            return bridge_made_at(self._engine.call("GET", "/networks/bridge", timeout_s=LIST_S))
        except EngineRefused:
            return None  # switched off on this engine

    def run_times(self) -> Optional[RunTimes]:
        """When the engine was stopped and started, as systemd has it; None where it is not known to be that unit."""
        times = unit_times()
        if times is None or self._is_default:
            return times
        made = self.started_at()
        age = None if made is None else self.wall() - from_wire(made).timestamp()
        began, ready = time.monotonic() - times.began, time.monotonic() - times.ready
        return times if age is not None and ready - UNIT_SLACK_S <= age <= began + UNIT_SLACK_S else None

    def ended_by_itself(self, container_id: str) -> bool:
        """Whether the engine told of its end, and of no signal that it had sent before. False: not known."""
        return self._witness.ended_by_itself(container_id)

    def was_signalled(self, container_id: str) -> Optional[bool]:
        """Whether a signal was sent to it before it ended, by what the engine still knows of its last run; None when
        that is not enough. No clock counts, only the order."""
        events = self._engine.call_lines(
            "/events",
            params={
                "since": "1",
                "until": str(int(time.time()) + 1),
                "filters": json.dumps({"container": [container_id]}),
            },
            timeout_s=LIST_S,
        )
        return signalled_before_end(event_of(line) for line in events)

    def list_own(self) -> list[Seen]:
        """Every container of a task, of this and of other control planes, in one call."""
        return self.list_labelled(LABEL_UID)

    def list_labelled(self, label: str) -> list[Seen]:
        """Every container that carries this label, whatever its state, in one call."""
        params = {"all": "1", "filters": json.dumps({"label": [label]})}
        return listing_of(self._engine.call("GET", "/containers/json", params=params, timeout_s=LIST_S))

    def inspect(self, container_id: str) -> Facts:
        """NotThere when the container is gone."""
        facts = facts_of(self._engine.call("GET", f"/containers/{container_id}/json", timeout_s=LIST_S))
        if facts.exit_code != EXIT_KILLED or facts.running or facts.oom_killed:
            return facts
        return dataclasses.replace(facts, oom_killed=self._witness.killed_for_memory(facts.id))

    def create(self, plan: ContainerPlan, spare_name: str) -> str:
        """The new container's full id. When the plan's name is taken, the spare one is used; a conflict over that
        is refused with status 409. A name that a container of this very claim has is no conflict: it is that one."""
        body = create_body(plan)
        for name, last in ((plan.name, False), (spare_name, True)):
            try:
                return self._create(name, body)
            except EngineRefused as refusal:
                if refusal.status != 409:
                    raise
                made = self._made_before(name, plan)
                if made is not None:
                    return made
                if last:
                    raise
        raise AssertionError("the last name was not tried")

    def _made_before(self, name: str, plan: ContainerPlan) -> Optional[str]:
        """The container with that name, where it was made for the same claim and has not run yet."""
        try:
            found = self.inspect(name)
        except NotThere:
            return None  # it went in between
        same = all(label in plan.labels and found.labels.get(label) == plan.labels[label] for label in _SAME_CLAIM)
        return found.id if same and found.state == "created" else None

    def _create(self, name: str, body: dict[str, Any]) -> str:
        answer = self._engine.call("POST", "/containers/create", params={"name": name}, body=body, timeout_s=CREATE_S)
        return created_of(answer)

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

    def never_restart(self, container_id: str) -> None:
        """Take back a restart policy that somebody set by hand. What cannot be changed any more will not start."""
        body = {"RestartPolicy": {"Name": "no"}}
        with contextlib.suppress(EngineRefused):
            self._engine.call("POST", f"/containers/{container_id}/update", body=body, timeout_s=LIST_S)

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
        with reading("a container"):
            program, places = _programs(document)
        if not program:
            return None
        found = [mode for mode in (self._mode(container_id, place) for place in places) if mode is not None]
        if not found:
            return f'exec: "{program}": no such file or directory'
        if all(mode & _GO_DIR for mode in found):
            return f'exec: "{program}": is a directory'
        if not any(mode & (_GO_LINK | 0o111) for mode in found):
            return f'exec: "{program}": permission denied'
        return None

    def changed_ns(self, container_id: str, path: str) -> Optional[int]:
        """When what lies at ``path`` in the container was last changed, in whole microseconds given as nanoseconds
        since the epoch, as the engine itself sees it; None: there is nothing."""
        found = self._look_at(container_id, path)
        if found is None:
            return None
        moment: timedelta = found["mtime"] - datetime(1970, 1, 1, tzinfo=timezone.utc)
        return moment // timedelta(microseconds=1) * 1000

    def _mode(self, container_id: str, path: str) -> Optional[int]:
        """The file mode (in the engine's bits) of what lies at ``path`` in the container; None: nothing."""
        found = self._look_at(container_id, path)
        return None if found is None else int(found["mode"])

    def _look_at(self, container_id: str, path: str) -> Optional[dict[str, Any]]:
        """What the engine says of a path in a container, running or not; None: there is nothing."""
        try:
            headers = self._engine.head(f"/containers/{container_id}/archive", params={"path": path}, timeout_s=LIST_S)
        except NotThere:
            return None
        return stat_of(headers.get(STAT_HEADER, ""))

    def log_rest(self, container_id: str, limit_bytes: int, after: str = "", thorough: bool = True) -> LogRest:
        """The output since the place ``after``: see :mod:`runtime.agent.drivers.output`."""
        return self._logs.rest(container_id, limit_bytes, after, thorough)

    def log_follow(
        self, container_id: str, after: str, on_open: Callable[[Callable[[], None]], None]
    ) -> Iterator[LogPiece]:
        """The output behind the place ``after`` as it comes. ``on_open`` gets what ends it from any thread."""
        return self._logs.follow(container_id, after, on_open)

    def events(self, on_open: Callable[[Callable[[], None]], None]) -> Iterator[str]:
        """The uid of each task whose container started, ended or vanished, as it happens.

        A silence of 5 minutes ends the stream like a lost connection: the caller looks for itself and comes again.
        """
        filters = {"type": ["container"], "label": [LABEL_UID], "event": list(EVENTS)}

        def opened(close: Callable[[], None]) -> None:
            self._witness.opened()
            on_open(close)

        pieces = self._engine.stream(
            "/events", params={"filters": json.dumps(filters)}, on_open=opened, timeout_s=EVENTS_SILENCE_S
        )
        for line in lines_of(pieces):
            event = event_of(line)
            if event is not None:
                self._witness.heard(event.what, event.container_id)
                if event.what != "kill":
                    yield event.uid


def _programs(document: dict[str, Any]) -> tuple[str, list[str]]:
    """The container's program, and the paths where it may lie, in the order in which they are looked at."""
    program = str(document.get("Path") or "")
    config = document.get("Config") or {}
    if "/" in program:
        return program, [posixpath.join(config.get("WorkingDir") or "/", program)]
    path = next((item[5:] for item in config.get("Env") or () if item.startswith("PATH=")), DEFAULT_PATH)
    return program, [posixpath.join(folder, program) for folder in path.split(":") if folder.startswith("/")]
