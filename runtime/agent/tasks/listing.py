"""The engine's list of our containers, and whether an absence from it may be believed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Callable, Optional

from runtime.agent.drivers.driver import LABEL_CONTROL_PLANE, LABEL_NODE, LABEL_TASK, EngineFacts, Seen
from runtime.protocol.heartbeat import Foreign
from runtime.protocol.times import to_wire

NOT_ASKED = "it was not asked yet"


@dataclass(frozen=True)
class Listing:
    """One good listing. ``complete``: what is not in it is really not there."""

    at: float
    containers: tuple[Seen, ...]
    complete: bool


class Trust:
    """Another engine than before, or an empty list where containers were known, is believed only when a second
    pass says the same."""

    def __init__(self, engine_id: Optional[str]) -> None:
        self._engine_id = engine_id
        self._doubted: Optional[tuple[Optional[str], bool]] = None

    def judge(self, engine_id: Optional[str], listed: int, known: int) -> bool:
        """Whether this pass may be believed. ``listed`` and ``known`` count containers."""
        another = self._engine_id is not None and engine_id != self._engine_id
        emptied = known > 0 and listed == 0
        if not another and not emptied:
            self._doubted = None
            self._engine_id = engine_id
            return True
        if self._doubted == (engine_id, emptied):
            self._engine_id = engine_id
            return True
        self._doubted = (engine_id, emptied)
        return False


class Ages:
    """How long containers have been there. The wall clock, by which an engine tells it, may have been set since: what
    this agent itself has seen of them counts as well, and the shorter time is taken. One that was made in the future
    was made before the clock was set back: then only what was seen counts, or it would be young for hours."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._wall = wall
        self._first: dict[str, dict[str, float]] = {}

    def note(self, engine: str, containers: Sequence[Seen]) -> None:
        """A list of all that is there now, on one engine."""
        now, known = self._clock(), self._first.get(engine, {})
        self._first[engine] = {seen.id: known.get(seen.id, now) for seen in containers}

    def of(self, engine: str, seen: Seen) -> float:
        """Seconds."""
        now = self._clock()
        watched, told = now - self._first.get(engine, {}).get(seen.id, now), self._wall() - seen.created_at
        return watched if told < 0 else min(watched, told)


class LastListing:
    """The newest listing, for the heartbeat: read by other threads, never waited for.

    ``on_first()`` is called once, when the engine has answered or failed for the first time.
    """

    def __init__(
        self,
        fresh_s: float,
        on_first: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fresh_s = fresh_s
        self._on_first = on_first
        self._clock = clock
        self._lock = threading.Lock()
        self._listing: Optional[Listing] = None
        self._engine: Optional[EngineFacts] = None
        self._error: Optional[str] = NOT_ASKED

    def good(self, listing: Listing, engine: EngineFacts) -> None:
        with self._lock:
            first = self._error == NOT_ASKED
            self._listing, self._engine, self._error = listing, engine, None
        if first:
            self._on_first()

    def bad(self, error: str) -> None:
        with self._lock:
            first = self._error == NOT_ASKED
            self._error = error
        if first:
            self._on_first()

    def now(self) -> Optional[Listing]:
        """The listing, None when there is none that is fresh: then nothing is known."""
        with self._lock:
            listing, error = self._listing, self._error
        if error is not None or listing is None or self._clock() - listing.at > self._fresh_s:
            return None
        return listing

    def trusted(self) -> Optional[Listing]:
        """The listing, where also what it does not show is known; else None."""
        listing = self.now()
        return listing if listing is not None and listing.complete else None

    @property
    def engine(self) -> Optional[EngineFacts]:
        with self._lock:
            return self._engine

    @property
    def error(self) -> Optional[str]:
        with self._lock:
            return self._error


def is_own(seen: Seen, control_plane_id: Optional[str], node_id: str) -> bool:
    """Whether the labels name this control plane and this node."""
    labels = seen.labels
    return labels.get(LABEL_CONTROL_PLANE) == control_plane_id and labels.get(LABEL_NODE) == node_id


def foreign_entry(seen: Seen, cards: Sequence[str]) -> Foreign:
    """How the heartbeat tells of a container that is not ours to judge, and of the cards that it holds."""
    return Foreign(
        container_id=seen.id,
        task_id=seen.labels.get(LABEL_TASK),
        control_plane_id=seen.labels.get(LABEL_CONTROL_PLANE),
        gpus=list(cards),
        since=to_wire(datetime.fromtimestamp(seen.created_at, timezone.utc)),
        uid=seen.uid or None,
        attempt=seen.attempt if seen.attempt >= 0 else None,
        claim_token=seen.claim_token or None,
    )
