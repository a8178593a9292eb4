"""The things that run tasks on this node, each with what was last seen of it.

They are looked at apart: that one cannot be listed says nothing about what another runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Callable, Optional

from runtime.agent.drivers.driver import EngineFacts
from runtime.agent.drivers.errors import DriverError
from runtime.agent.tasks.engine_ends import AroundEnd
from runtime.agent.tasks.listing import NOT_ASKED, LastListing, Listing, Trust
from runtime.agent.tasks.outages import Outages
from runtime.protocol.states import Driver as DriverName

if TYPE_CHECKING:
    from runtime.agent.drivers.driver import Driver, Facts
    from runtime.agent.tasks.journal import Journal

log = logging.getLogger(__name__)

ENGINE_EVERY_S = 60.0


class Engine:
    """One driver. ``facts``: its last known self-description. ``look`` may be called from any thread.

    ``optional``: this node may well do without it. One that is expected here and does not answer is never taken for
    one that is not there.
    """

    def __init__(
        self,
        name: DriverName,
        driver: Driver,
        journal: Journal,
        fresh_s: float,
        on_first: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        *,
        optional: bool = False,
    ) -> None:
        self.name = name
        self._optional = optional
        self.driver = driver
        self.facts = EngineFacts(None, None)
        self.last = LastListing(fresh_s, on_first, clock)
        self.outages = Outages(lambda: driver.wall(), clock)
        self._journal = journal
        self._clock = clock
        self._facts_at: Optional[float] = None
        self._live_since: Optional[float] = None
        self._trust = Trust(journal.fact(fact_of(name)))

    @property
    def answers(self) -> bool:
        """Whether it could be listed when it was last tried."""
        return self.last.error is None

    def absent(self) -> bool:
        """Whether nothing of ours can run on it although it cannot be listed: it is not here. A state folder that has
        never seen it proves nothing, since it may be new; what lies on this machine is looked at, too."""
        if not self._optional or self.last.error in (None, NOT_ASKED):
            return False
        return self._journal.fact(fact_of(self.name)) is None and not self.driver.has_traces()

    def look(self, known: int) -> Optional[Listing]:
        """List, and note what it says of the engine; None when it cannot be listed, which says nothing at all.

        ``known``: how many of its containers started, as far as the claims tell.
        """
        begun = self._clock()
        try:
            containers = self.driver.list_own()
            self._refresh()
        except DriverError as error:
            if self.last.error != str(error):
                log.warning("%s: nothing can be listed: %s", self.name.value, error)
            self._facts_at = None
            self.last.bad(str(error))
            self.outages.gone()
            return None
        self.outages.alive(begun)
        facts = self.facts
        complete = self._trust.judge(facts.id, len(containers), known)
        if complete and facts.id is not None and facts.id != self._journal.fact(fact_of(self.name)):
            self._journal.save_fact(fact_of(self.name), facts.id)
        if not complete:
            log.warning(
                "%s: the list is in doubt: engine %s shows %d container(s), %d were known; a second look decides",
                self.name.value,
                facts.id,
                len(containers),
                known,
            )
        listing = Listing(self._clock(), tuple(containers), complete)
        self.last.good(listing, facts)
        return listing

    def around_end(self, facts: Facts, asked: Optional[float]) -> AroundEnd:
        """What is known of the engine around the end of a container that did not start before ``asked`` (seconds of
        the monotonic clock). Raises EngineUnavailable as long as the engine goes down."""
        began = max(self.outages.moments(self.driver.started_at()), default=None)
        ended = self.outages.moments(facts.finished_at)
        if self.driver.ended_by_itself(facts.id):
            return AroundEnd(ended, by_itself=True)
        if began is not None and asked is not None and began <= asked and self.outages.watched(asked):
            return AroundEnd(ended, asked, began)  # this agent has been here all the time: nobody else need be asked
        times, outlives = self.driver.run_times(), self.driver.engine().live_restore
        if times is not None and not outlives:
            began = times.began  # one that leaves its containers alone leaves its bridge, and that is dated well
        before = self.outages.last_proof_before(began) if began is not None else None
        return AroundEnd(
            ended=ended,
            asked=asked,
            engine_began=began,
            engine_stopping=times.stopping if times is not None else None,
            silent=any(self.outages.silent(at) or (before is not None and at >= before) for at in ended),
            watched=bool(ended) and all(self.outages.watched(at) for at in ended),
            outlives=outlives and bool(ended) and all(self._left_alone_at(at) for at in ended),
        )

    def _left_alone_at(self, moment: float) -> bool:
        """Whether the engine was known then to leave its containers alone when it goes."""
        return self._live_since is not None and self._live_since <= moment

    def known(self) -> EngineFacts:
        """Its self-description, asked for where it is not known yet. Raises DriverError."""
        if self.facts.id is None:
            self.facts = self.driver.engine()
        return self.facts

    def _refresh(self) -> None:
        now = self._clock()
        if self._facts_at is None or now - self._facts_at >= ENGINE_EVERY_S:
            self.facts = self.driver.engine()
            self._facts_at = now
            if not self.facts.live_restore:
                self._live_since = None
            elif self._live_since is None:
                self._live_since = now


Engines = Mapping[DriverName, Engine]


def fact_of(name: DriverName) -> str:
    """Under which name the journal keeps who that engine is."""
    return "engine_id" if name is DriverName.DOCKER else f"{name.value}_engine_id"
