"""Containers with our kind of labels that are no claim's of this agent under its name, and the cards they hold.

The server places nothing on those cards, and takes no task for gone whose container is listed here.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Optional

from runtime.agent.drivers.errors import DriverError
from runtime.agent.tasks.listing import foreign_entry, is_own
from runtime.agent.tasks.parts import Claims, Parts
from runtime.agent.tasks.records import Key
from runtime.protocol.heartbeat import Foreign

if TYPE_CHECKING:
    from runtime.agent.drivers.driver import Seen
    from runtime.agent.tasks.engines import Engine
    from runtime.protocol.states import Driver as DriverName

log = logging.getLogger(__name__)

LOOKS_A_POLL = 20

HOLDING = ("running", "paused", "restarting")
"""States in which a container holds its cards."""


class Strangers:
    """Looks in the thread that polls an engine; tells in any."""

    def __init__(self, parts: Parts, claims: Claims) -> None:
        self._parts = parts
        self._claims = claims
        self._cards: dict[DriverName, dict[str, tuple[str, ...]]] = {}

    def look(self, engine: Engine) -> None:
        """Which cards those of an engine hold: each running container is inspected once."""
        found, looks = {}, 0
        listing, before = engine.last.now(), self._cards.get(engine.name, {})
        for seen in listing.containers if listing is not None else ():
            if seen.state not in HOLDING or not self._is_stranger(seen):
                continue
            cards = before.get(seen.id)
            if cards is None and looks < LOOKS_A_POLL:
                looks += 1
                try:
                    cards = engine.driver.inspect(seen.id).cards
                except DriverError as error:
                    log.debug("container %s, which is no claim's: %s", seen.id[:12], error)
            if cards is not None:
                found[seen.id] = cards
        self._cards = {**self._cards, engine.name: found}

    def foreign(self) -> Optional[list[Foreign]]:
        """Those that are not of this node of this control plane; None when nobody knows, be it only which cards
        one of them holds."""
        listed, cards = self._listed(own=False), self._known_cards()
        if listed is None or any(seen.state in HOLDING and seen.id not in cards for seen in listed):
            return None
        return [foreign_entry(seen, cards.get(seen.id, ())) for seen in listed]

    def orphans(self) -> Optional[list[Foreign]]:
        """Those of this node: an earlier instance's, or of a lost journal. None when nobody knows."""
        listed, cards = self._listed(own=True), self._known_cards()
        if listed is None:
            return None
        return [foreign_entry(seen, cards.get(seen.id, ())) for seen in listed if not self._is_claimed(seen)]

    def _listed(self, *, own: bool) -> Optional[list[Seen]]:
        """None when an engine that may run something cannot be listed."""
        control_plane, node = self._parts.client.control_plane_id, self._parts.identity.node_id
        if control_plane is None:
            return None
        found: list[Seen] = []
        for engine in self._parts.drivers.values():
            listing = engine.last.trusted()
            if listing is not None:
                found += [seen for seen in listing.containers if is_own(seen, control_plane, node) is own]
            elif not engine.absent():
                return None
        return found

    def _known_cards(self) -> dict[str, tuple[str, ...]]:
        return {name: cards for found in list(self._cards.values()) for name, cards in found.items()}

    def _is_stranger(self, seen: Seen) -> bool:
        """Also one with a claim, where its labels name another node: this agent may have had another name."""
        control_plane = self._parts.client.control_plane_id
        own = control_plane is None or is_own(seen, control_plane, self._parts.identity.node_id)
        return not own or not self._is_claimed(seen)

    def _is_claimed(self, seen: Seen) -> bool:
        return self._claims.get(Key(seen.uid, seen.attempt)) is not None
