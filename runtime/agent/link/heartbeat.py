"""The heartbeat: says what the node is and does, and learns what the server wants.

Its loop is the only one that finds out whether the server is there. What the answers lead to is handed on and
must return at once: no other call ever delays a beat.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from dataclasses import dataclass, replace
from typing import Callable, Optional

from runtime.agent.link.beat import Composer, Content
from runtime.agent.link.client import ServerClient
from runtime.agent.link.errors import LinkError, Unavailable
from runtime.agent.link.identity import Identity
from runtime.agent.link.outcome import (
    REFUSED_S,
    Action,
    Link,
    Outcome,
    after_failure,
    clamped_interval,
    is_about_the_name,
)
from runtime.agent.link.seen import SeenRevisions
from runtime.agent.loop import Backoff, Clock, Loop
from runtime.agent.state import StateError
from runtime.protocol.heartbeat import HeartbeatAnswer, LostRevisions, PendingCounts
from runtime.protocol.times import now as wall_now
from runtime.protocol.times import to_wire

log = logging.getLogger(__name__)

FIRST_INTERVAL_S = 5.0
FIRST_WINDOW = 2.0
LAST_WINDOW = 4.0
LEAST_WAIT = 0.2
"""Back-off in intervals: from 1 to 10 s at first, then from 1 to 20 s, when beats are 5 s apart. The first window
is as wide as one lost beat allows (the node must not look unreachable for it): a fleet that was beating evenly asks
hardly faster than before when its server goes away."""

DEADLINE_S = 60.0


@dataclass(frozen=True)
class LastError:
    """``since`` is when this error began; ``code`` is the problem's, or ``unreachable`` / ``unusable_answer``."""

    code: str
    text: str
    since: str


@dataclass(frozen=True)
class LinkStatus:
    """How it stands with the server. ``registered``: the newest beat was accepted."""

    link: Link = Link.AWAY
    registered: bool = False
    last_beat_at: Optional[str] = None
    last_error: Optional[LastError] = None
    control_plane_id: Optional[str] = None
    interval_s: float = FIRST_INTERVAL_S
    doorbell: Optional[str] = None
    polls: bool = False
    """The server sends no ``pending``, so work has to be asked for."""


class Heartbeats:
    """Sends beats until it is stopped. Callbacks run in the heartbeat's thread and must return at once.

    ``content`` gathers what a beat says; ``on_answer`` gets each 200; ``on_pending`` the counts in it;
    ``holds_anything`` tells whether containers or undelivered results are bound to the present identity;
    ``on_new_instance`` is called before this agent becomes another instance;
    ``on_status`` is called after each beat, whatever came of it.
    """

    def __init__(
        self,
        client: ServerClient,
        identity: Identity,
        content: Callable[[], Content],
        *,
        on_answer: Callable[[HeartbeatAnswer], None],
        on_pending: Callable[[PendingCounts], None],
        on_status: Callable[[], None],
        holds_anything: Callable[[], bool],
        on_new_instance: Callable[[], None] = lambda: None,
        seen: Optional[tuple[str, int]] = None,
        revisions: Optional[SeenRevisions] = None,
        refused_s: float = REFUSED_S,
        interval_s: float = FIRST_INTERVAL_S,
        rng: Optional[random.Random] = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._client = client
        self._identity = identity
        self._content = content
        self._on_answer = on_answer
        self._on_pending = on_pending
        self._on_status = on_status
        self._holds_anything = holds_anything
        self._on_new_instance = on_new_instance
        self._refused_s = refused_s
        self._rng = rng or random.Random()  # noqa: S311
        self._sending = threading.Lock()
        self._status = LinkStatus(interval_s=interval_s)
        self._composer = Composer(seen[0] if seen else None)
        self._revisions = revisions or SeenRevisions()
        if seen is not None:
            self._revisions.note(*seen)
        self._lost: Optional[LostRevisions] = None
        self._backoff = self._new_backoff(interval_s)
        self._hurried = False
        self._told_newcomer = False
        self._first = True
        self.loop = Loop("heartbeat", interval_s, self.beat, deadline_s=DEADLINE_S, rng=self._rng, clock=clock)

    @property
    def status(self) -> LinkStatus:
        return self._status

    @property
    def seen(self) -> Optional[tuple[str, int]]:
        """The newest control plane's id and the highest revision seen of it."""
        control_plane_id = self._composer.control_plane_id
        revision = self._revisions.highest(control_plane_id)
        return None if control_plane_id is None or revision is None else (control_plane_id, revision)

    def beat(self) -> None:
        """One beat and what follows from it; never raises for what the server or the network did."""
        try:
            answer = self._send()
        except LinkError as error:
            self._failed(error)
        else:
            self._accepted(answer)
        self._on_status()

    def leave(self, client: ServerClient, patience_s: float = 2.0) -> None:
        """The last beat, by a client with short limits: this agent goes, its containers stay.

        Raises LinkError when it was not heard, also when the beat before it still hangs.
        """
        if not self._sending.acquire(timeout=patience_s):
            raise Unavailable("the last beat but one still waits for its answer")
        try:
            self._exchange(client, leaving=True)
        finally:
            self._sending.release()

    def _send(self) -> HeartbeatAnswer:
        with self._sending:
            return self._exchange(self._client, leaving=False)

    def _exchange(self, client: ServerClient, leaving: bool) -> HeartbeatAnswer:
        control_plane_id = self._composer.control_plane_id
        # The answer is held against what was seen before the beat was sent: others are answered beside it.
        seen = self._revisions.all()
        who = {
            "node_id": self._identity.node_id,
            "instance_id": self._identity.instance_id,
            "fingerprint": self._identity.fingerprint,
            "boot_id": self._identity.boot_id,
            "run": self._identity.run,
            "sent_at": to_wire(wall_now()),
            "leaving": leaving,
            "seen_revision": seen.get(control_plane_id) if control_plane_id is not None else None,
            "seen_control_plane_id": control_plane_id,
        }
        beat = self._composer.compose(who, self._content())
        try:
            answer = client.heartbeat(beat)
        except LinkError:
            self._composer.failed()
            raise
        changed = self._composer.accepted(beat, answer)
        answer = replace(answer, lost=self._lost_by(answer, seen.get(answer.control_plane_id), changed))
        self._revisions.note(answer.control_plane_id, answer.revision)
        if changed:
            log.warning("another control plane answers now: %s", answer.control_plane_id)
            if not self._told_newcomer:
                self.loop.wake()
        self._told_newcomer = changed  # two that answer in turn (behind one address) must not make a race of it
        return answer

    def _lost_by(self, answer: HeartbeatAnswer, known: Optional[int], changed: bool) -> Optional[LostRevisions]:
        """What the server's database has lost: as it says itself, else as its revision shows."""
        before, self._lost = (None if changed else self._lost), answer.lost
        if answer.lost is None and known is not None and answer.revision < known:
            start = answer.revision if before is None else min(answer.revision, before.start)
            self._lost = LostRevisions(start)
        if self._lost is not None and before is None:
            log.warning(
                "the control plane's database was put back: it knows nothing above revision %d, this agent has seen "
                "%s; containers and results are kept until an operator has accepted it",
                self._lost.start,
                known,
            )
        return self._lost

    def _accepted(self, answer: HeartbeatAnswer) -> None:
        interval = clamped_interval(answer.interval_s)
        if interval != self._status.interval_s:
            self._backoff = self._new_backoff(interval)
        if not self._status.registered:
            log.info("registered with control plane %s as %s", answer.control_plane_id, self._identity.node_id)
        self._status = LinkStatus(
            link=Link.GOOD,
            registered=True,
            last_beat_at=to_wire(wall_now()),
            control_plane_id=answer.control_plane_id,
            interval_s=interval,
            doorbell=answer.doorbell,
            polls=answer.pending is None,
        )
        self._backoff.reset()
        self._hurried = False
        self.loop.interval_s = interval
        if self._first:
            # Agents that were started together do not stay together.
            self._first = False
            self.loop.delay_next(self._rng.uniform(LEAST_WAIT * interval, interval))
        self._on_answer(answer)
        if answer.pending is not None:
            self._on_pending(answer.pending)

    def _failed(self, error: LinkError) -> None:
        outcome = after_failure(
            error,
            interval_s=self._status.interval_s,
            may_rename=is_about_the_name(error) and self._identity.defaulted and not self._holds_anything(),
        )
        self._note(error, outcome)
        try:
            self._act(outcome)
        except (StateError, OSError) as fault:
            # What was not written must not show: the same beat gets the same answer later.
            log.error("the identity cannot be changed: %s", fault)
            outcome = replace(outcome, delay_s=REFUSED_S)
        again_s = getattr(error, "again_s", None)
        delay = outcome.delay_s
        if delay == 0 and self._hurried:
            delay = None  # acting on it did not help: two agents may be taking the same identity in turn
        self._hurried = delay == 0
        if again_s is not None:
            delay = again_s
        elif delay is None:
            asked = getattr(error, "retry_after", None) or 0.0
            delay = max(self._backoff.next(), asked * self._rng.uniform(1.0, 1.1))
        else:
            delay = (self._refused_s if outcome.link is Link.REFUSED and delay else delay) * self._rng.uniform(0.9, 1.1)
        # What was learnt meanwhile (cards, the engine) is no reason to ask a server sooner that refuses, or is away.
        self.loop.delay_next(delay, firm=delay > 0)

    def _note(self, error: LinkError, outcome: Outcome) -> None:
        """Into the status, and into the log once per change."""
        code = getattr(error, "code", None) or _code_of(error)
        before = self._status.last_error
        # Sentences may hold moving parts (seconds since the holder was heard): the code makes the change.
        if before is not None and before.code == code:
            last = replace(before, text=str(error))
        else:
            last = LastError(code, str(error), to_wire(wall_now()))
            log.error("heartbeat: %s", error) if outcome.link is Link.REFUSED else log.warning("heartbeat: %s", error)
        self._status = replace(self._status, link=outcome.link, registered=False, last_error=last)

    def _act(self, outcome: Outcome) -> None:
        if outcome.action is Action.TAKE_RUN:
            self._identity.take_run(outcome.known_run + 1)
        elif outcome.action is Action.NEW_INSTANCE:
            self._on_new_instance()
            self._identity.new_instance()
            log.warning("another machine has this instance: this agent is instance %s now", self._identity.instance_id)
        elif outcome.action is Action.SPARE_NODE_ID:
            log.warning("the node id is taken: this agent is node %s now", self._identity.take_spare_node_id())

    def _new_backoff(self, interval_s: float) -> Backoff:
        return Backoff(FIRST_WINDOW * interval_s, LAST_WINDOW * interval_s, LEAST_WAIT * interval_s, rng=self._rng)


def _code_of(error: LinkError) -> str:
    return "unusable_answer" if getattr(error, "answered", False) else "unreachable"
