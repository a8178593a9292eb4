"""The agent as a whole: what it is made of, and the order of start and stop. Built by :mod:`wiring`."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol

from runtime.agent.card_probe.gate import Gate
from runtime.agent.card_probe.runner import CardProbes
from runtime.agent.content import ContentSource, Workload
from runtime.agent.engines.watch import EnginesSnapshot, EngineWatch
from runtime.agent.hardware.host import HostWatch
from runtime.agent.hardware.infiniband.watch import AdapterWatch
from runtime.agent.hardware.inventory import Inventory
from runtime.agent.link.client import ServerClient
from runtime.agent.link.doorbell import Doorbell
from runtime.agent.link.errors import LinkError
from runtime.agent.link.heartbeat import Heartbeats, LastError
from runtime.agent.link.identity import Identity
from runtime.agent.link.outcome import Link
from runtime.agent.link.seen import read_seen
from runtime.agent.loop import Loop
from runtime.agent.models.scanner import ModelScanner, ModelsSnapshot
from runtime.agent.notify import Notifier
from runtime.agent.status import FILE as STATUS_FILE
from runtime.agent.status import AgentStatus, read_status, write_status
from runtime.agent.tasks.journal_health import JournalHealth
from runtime.protocol.build import this_build
from runtime.protocol.codec import encode
from runtime.protocol.heartbeat import CHANNELS, LOGS, HeartbeatAnswer, PendingCounts
from runtime.protocol.instructions import Channel
from runtime.protocol.masking import Masker
from runtime.protocol.times import now as wall_now
from runtime.protocol.times import to_wire

if TYPE_CHECKING:
    from runtime.agent.settings import AgentSettings

log = logging.getLogger(__name__)

STOP_S = 20.0
HEARTBEAT_STOP_S = 4.0
EXECUTOR_STOP_S = 8.0
LAST_BEAT_CONNECT_S = 1.5
LAST_BEAT_READ_S = 3.0
HEALTH_LOOK_S = 10.0


class Executor(Workload, Protocol):
    """The tasks of this node, as the app drives them. Nothing here blocks but ``start`` and ``stop``."""

    def start(self) -> None: ...
    def stop(self, deadline_s: float) -> None: ...
    def wake(self) -> None: ...
    def on_answer(self, answer: HeartbeatAnswer) -> None: ...
    def holds_anything(self) -> bool: ...
    def disown(self) -> None: ...


class Instructions(Protocol):
    """Slice, image and file instructions."""

    loop: Loop

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def wake(self, channels: Sequence[str]) -> None: ...


@dataclass
class Parts:
    """Everything that runs."""

    settings: AgentSettings
    identity: Identity
    client: ServerClient
    inventory: Inventory
    host: HostWatch
    executor: Executor
    instructions: Optional[Instructions] = None
    models: Optional[ModelScanner] = None
    engines: Optional[EngineWatch] = None
    notifier: Optional[Notifier] = None
    gate: Optional[Gate] = None
    probes: Optional[CardProbes] = None
    journal: Callable[[], JournalHealth] = JournalHealth
    masker: Masker = field(default_factory=Masker)
    adapters: Optional[AdapterWatch] = None


class Agent:
    """Runs the parts from :meth:`start` to :meth:`stop`."""

    def __init__(self, parts: Parts) -> None:
        settings = parts.settings
        self._parts = parts
        self._notifier = parts.notifier or Notifier()
        self._status_path = Path(settings.state_dir) / STATUS_FILE
        self._complained = False
        stored = read_status(self._status_path) or {}
        for control_plane_id, revision in read_seen(stored).items():
            parts.client.seen.note(control_plane_id, revision)
        content = ContentSource(
            settings,
            parts.gate or parts.inventory,
            parts.host,
            parts.executor,
            self.loops,
            parts.models.snapshot if parts.models is not None else ModelsSnapshot,
            parts.engines.snapshot if parts.engines is not None else EnginesSnapshot,
            parts.adapters.snapshot if parts.adapters is not None else lambda: None,
        )
        self.heartbeats = Heartbeats(
            parts.client,
            parts.identity,
            content.read,
            on_answer=parts.executor.on_answer,
            on_pending=self.pull,
            on_status=self._write_status,
            holds_anything=parts.executor.holds_anything,
            on_new_instance=parts.executor.disown,
            seen=_seen_last(stored),
            revisions=parts.client.seen,
        )
        self.doorbell = Doorbell(
            parts.client,
            lambda: self.heartbeats.status.doorbell,
            self._rung,
            may_connect=lambda: self.heartbeats.status.link is Link.GOOD,
        )
        self._poll = Loop("poll", settings.poll_interval_s, self._poll_once, first_delay_s=None)
        self._safety = Loop("safety-pull", settings.safety_pull_s, self._pull_pending, first_delay_s=None)

    # Start, watch, stop.

    def start(self) -> None:
        """Adopt what runs, then begin to beat. Nothing here waits for the server."""
        parts = self._parts
        parts.executor.start()
        if parts.instructions is not None:
            parts.instructions.start()
        parts.inventory.start()
        parts.host.loop.start()
        for loop in (self.heartbeats.loop, self.doorbell.loop, self._poll, self._safety, *self._lookers()):
            loop.start()
        self._write_status()
        self._notifier.ready(f"node {parts.identity.node_id}, server {parts.settings.server_url}")

    def run_until(self, stop: threading.Event) -> None:
        """Keep the watchdog informed until ``stop`` is set."""
        watchdog = self._notifier.watchdog_s
        pause = HEALTH_LOOK_S if watchdog is None else min(HEALTH_LOOK_S, watchdog / 3)
        while not stop.wait(pause):
            stuck = self.stuck_loops()
            if not stuck:
                self._notifier.alive()
                self._complained = False
            elif not self._complained:
                self._complained = True
                log.error("no progress in: %s; the watchdog gets no word until there is", ", ".join(stuck))

    def stop(self) -> None:
        """Heartbeat first, then the tasks' supervision, then a last beat. Containers stay as they are."""
        began = time.monotonic()
        self._notifier.stopping()
        parts = self._parts
        own = (self.heartbeats.loop, self._poll, self._safety, self.doorbell.loop, parts.host.loop)
        for loop in (*own, *self._lookers()):
            loop.stop()
        self.heartbeats.loop.join(HEARTBEAT_STOP_S)
        if parts.instructions is not None:
            _carry_on(parts.instructions.stop, "instructions")
        if parts.probes is not None:
            _carry_on(parts.probes.stop, "card probes")
        _carry_on(lambda: parts.executor.stop(EXECUTOR_STOP_S), "executor")
        self._last_beat()
        _carry_on(parts.inventory.stop, "inventory")
        _carry_on(self._write_status, "status")
        log.info("stopped in %.1f s; containers were left as they are", time.monotonic() - began)

    def _last_beat(self) -> None:
        client = ServerClient(
            self._parts.settings,
            self._parts.identity,
            connect_s=LAST_BEAT_CONNECT_S,
            beat_read_s=LAST_BEAT_READ_S,
            key=self._parts.client.key,
        )
        try:
            self.heartbeats.leave(client)
        except LinkError as error:
            if getattr(error, "again_s", None) is None:  # a key that is refused was said, and is not sent once more
                log.warning("the server did not hear that this agent leaves: %s", error)
        finally:
            client.close()

    # What the loops are, and how they are.

    def loops(self) -> list[Loop]:
        parts = self._parts
        own = [self.heartbeats.loop, parts.inventory.loop, parts.host.loop, self.doorbell.loop]
        instructions = [parts.instructions.loop] if parts.instructions is not None else []
        return [*own, self._poll, self._safety, *self._lookers(), *instructions, *parts.executor.loops()]

    def _lookers(self) -> list[Loop]:
        """What looks for models, engines and adapters, and at cards that were bad."""
        parts = (self._parts.models, self._parts.engines, self._parts.adapters, self._parts.probes)
        return [part.loop for part in parts if part is not None]

    def stuck_loops(self) -> list[str]:
        """Names of loops that make no progress; what reads disks may hang on one without blame."""
        return [loop.name for loop in self.loops() if loop is not self._parts.host.loop and not loop.healthy()]

    # Work that waits on the server.

    def pull(self, counts: PendingCounts) -> None:
        """Something may wait in the channels that are not empty."""
        if counts.tasks:
            self._parts.executor.wake()
        waiting = [channel.plural for channel in Channel if getattr(counts, channel.plural)]
        if waiting and self._parts.instructions is not None:
            self._parts.instructions.wake(waiting)

    def _rung(self, channels: list[str]) -> None:
        if LOGS in channels:
            self.heartbeats.loop.wake()  # which log is read is said in the answer to a beat
        self.pull(PendingCounts(**{name: 1 for name in channels if name in CHANNELS}))

    def _poll_once(self) -> None:
        status = self.heartbeats.status
        if status.link is Link.POLL or (status.link is Link.GOOD and status.polls):
            self.pull(PendingCounts(1, 1, 1, 1))

    def _pull_pending(self) -> None:
        if self.heartbeats.status.link is Link.GOOD:
            self.pull(self._parts.client.pending())

    # The status file.

    def status(self) -> AgentStatus:
        parts, link = self._parts, self.heartbeats.status
        seen = self.heartbeats.seen
        return AgentStatus(
            node_id=parts.identity.node_id,
            instance_id=parts.identity.instance_id,
            run=parts.identity.run,
            version=str(this_build()),
            server_url=parts.settings.server_url or "",
            control_plane_id=seen[0] if seen else None,
            registered=link.registered,
            last_beat_at=link.last_beat_at,
            last_error=encode(_masked(link.last_error, parts.masker)) if link.last_error else None,
            loops=[loop.state() for loop in self.loops()],
            tasks=encode(parts.executor.task_health(), drop_none=True),
            undelivered=parts.executor.undelivered(),
            journal=encode(parts.journal()),
            foreign=encode(parts.executor.foreign(), drop_none=True),
            stuck_tools=parts.inventory.stuck_tools(),
            process=encode(parts.executor.process_state(), drop_none=True),
            pid=os.getpid(),
            boot_id=parts.identity.boot_id,
            seen_revision=seen[1] if seen else None,
            seen_revisions=parts.client.seen.all(),
            written_at=to_wire(wall_now()),
        )

    def _write_status(self) -> None:
        try:
            write_status(self._status_path, encode(self.status()))
        except OSError as error:
            log.warning("%s: %s", self._status_path, error.strerror)


def _seen_last(stored: dict[str, Any]) -> Optional[tuple[str, int]]:
    """Which control plane an earlier run of this agent heard last, and the highest revision of it."""
    control_plane, revision = stored.get("control_plane_id"), stored.get("seen_revision")
    return (control_plane, revision) if isinstance(control_plane, str) and isinstance(revision, int) else None


def _masked(error: LastError, masker: Masker) -> LastError:
    """What others answered may repeat what it was sent."""
    return replace(error, text=masker.text(error.text))


def _carry_on(step: Callable[[], None], name: str) -> None:
    """One part's failure to stop must not keep the next from stopping."""
    try:
        step()
    except Exception:
        log.exception("stopping %s failed", name)
