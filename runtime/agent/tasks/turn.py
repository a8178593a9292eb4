"""What a step may ask for when it is done: the next one now, the same one later, or the end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Callable, Optional

from runtime.agent.tasks.classify import Conclusion, StopReason
from runtime.agent.tasks.records import Stage

if TYPE_CHECKING:
    from runtime.agent.drivers.driver import Facts
    from runtime.agent.tasks.delivery import Outbound
    from runtime.agent.tasks.held import Held
    from runtime.agent.tasks.parts import Claims, Parts
    from runtime.agent.tasks.watch import Watch

log = logging.getLogger(__name__)

REFUSED_PAUSE_S = 60.0


class Turn:
    """Shared by the groups of steps. Steps return whether the next one can be taken at once."""

    def __init__(
        self, parts: Parts, claims: Claims, watch: Watch, outbound: Outbound, advance: Callable[[Held], None]
    ) -> None:
        self.parts = parts
        self.advance = advance
        self._claims = claims
        self._watch = watch
        self._outbound = outbound

    def end(self, held: Held, conclusion: Conclusion, facts: Optional[Facts]) -> bool:
        """Conclude; the report is the next step."""
        self._watch.disarm(held)
        self._outbound.conclude(held, conclusion, facts)
        return True

    def started_mono(self, held: Held, facts: Facts) -> float:
        """When its container started, by the monotonic clock."""
        return self._watch.started_mono(held, facts)

    def has_run(self, held: Held, container_id: str) -> None:
        """The journal is behind: its last words were lost, or somebody else started the container. It must not be
        started again."""
        log.warning("task %s: its container has run already, says the engine", held.record.task_id)
        self.parts.write(held, stage=Stage.STARTING, container_id=container_id)

    def again(self, held: Held, after_s: Optional[float] = None) -> bool:
        """Take the present step again later."""
        pause = max(held.pauses.next(), after_s or 0.0)
        self.parts.timers.after(("again", held.name), pause, lambda: self.advance(held))
        return False

    def forget(self, held: Held) -> bool:
        """The claim was never ours."""
        self.parts.journal.forget(held.key)
        self.parts.unlearn(held)
        self._claims.drop(held.key)
        return False

    def abandon(self, held: Held, why: str) -> bool:
        """Another attempt, node or end is the valid one: end what runs, tell nobody, keep the record."""
        if not held.superseded:
            log.info("task %s (attempt %d) is given up: %s", held.record.task_id, held.key.attempt, why)
        held.superseded = True
        held.stop(StopReason.STALE)
        self.advance(held)
        return False
