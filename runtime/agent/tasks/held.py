"""A claim in the agent's hands: its record on disk, and what is known only while the agent runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from runtime.agent.loop import Backoff
from runtime.agent.tasks.classify import StopReason
from runtime.agent.tasks.probes import ProbeState
from runtime.agent.tasks.records import ClaimRecord, Key
from runtime.protocol.heartbeat import TaskHealth
from runtime.protocol.states import Phase, Status
from runtime.protocol.tasks import TaskSpec
from runtime.protocol.times import now, to_wire

if TYPE_CHECKING:
    from runtime.agent.drivers.images import DockerPull
    from runtime.agent.tasks.classify import Conclusion
    from runtime.agent.tasks.log_end import ServerEnd

AGAIN_FIRST_S = 1.0
AGAIN_MAX_S = 20.0


@dataclass
class Held:
    """Changed by the worker that has its key, but for ``want`` and ``alive``, which are set by whoever learns of
    them and only read by the worker.

    ``secret_spec`` is the full specification, kept in memory only until the container is made. ``want`` is a stop
    that is asked for and not journalled yet. ``kill_at`` is when a signalled container is killed (monotonic).
    ``watched``: it runs, and what is due is armed. ``waits``: no step is taken until the server has proven that this
    is no copy. ``wake``: it sleeps, and the server has given it its cards again. ``told`` is
    what the server holds it for, as far as is known: running or sleeping. ``over``: what becomes of its conclusion
    when it is superseded. ``remove_at`` is when its container's removal may be tried again (monotonic).
    """

    record: ClaimRecord
    phase: Phase = Phase.CLAIMED
    since: str = field(default_factory=lambda: to_wire(now()))
    secret_spec: Optional[TaskSpec] = field(default=None, repr=False)
    want: Optional[StopReason] = None
    superseded: bool = False
    over: str = "superseded"
    pull: Optional[DockerPull] = None
    pulling: bool = False
    image_ready: bool = False
    pull_verdict: Optional[Conclusion] = None
    probe: Optional[ProbeState] = None
    address: Optional[str] = None
    kill_at: Optional[float] = None
    killed: bool = False
    alive: bool = False
    detail: Optional[str] = None
    reporting: bool = False
    report_failed_at: Optional[float] = None
    taken_at: float = 0.0
    maybe_made: bool = False
    waits: bool = False
    watched: bool = False
    wake: bool = False
    told: Optional[Status] = None
    tell_at: float = 0.0
    engine_away_since: Optional[float] = None
    removal_tries: int = 0
    removing: bool = False
    remove_at: float = 0.0
    tries: int = 0
    log_end: Optional[ServerEnd] = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    pauses: Backoff = field(default_factory=lambda: Backoff(AGAIN_FIRST_S, AGAIN_MAX_S, least_s=AGAIN_FIRST_S / 2))

    @property
    def key(self) -> Key:
        return self.record.key

    @property
    def name(self) -> str:
        """One worker at a time takes steps under this name."""
        return f"{self.key.uid}/{self.key.attempt}"

    def enter(self, phase: Phase, detail: Optional[str] = None) -> None:
        """A new phase begins now; entering the same one again only changes its detail."""
        if phase is not self.phase:
            self.phase, self.since = phase, to_wire(now())
        self.detail = detail

    def stop(self, reason: StopReason) -> None:
        """Ask for an end; the first reason stays. A pull under way is given up."""
        if self.want is None:
            self.want = reason
        self.cancel_pull()

    def cancel_pull(self) -> None:
        """Give up a pull under way."""
        self.cancelled.set()
        pull = self.pull
        if pull is not None:
            pull.cancel()

    def health(self) -> TaskHealth:
        """This claim's entry in the heartbeat."""
        probe, pull = self.probe, self.pull
        return TaskHealth(
            task_id=self.record.task_id,
            uid=self.key.uid,
            attempt=self.key.attempt,
            phase=self.phase.value,
            since=self.since,
            ready=probe.ready if probe is not None else None,
            healthy=probe.healthy if probe is not None else None,
            detail=self.detail or (probe.detail if probe is not None else None),
            container_id=self.record.container_id,
            pull=pull.progress() if pull is not None else None,
        )
