"""Whose the processes are that hold cards: a task's of this node, or not."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Optional

from runtime.agent.drivers.driver import LABEL_CONTROL_PLANE, LABEL_TASK
from runtime.agent.tasks.listing import is_own
from runtime.agent.tasks.parts import Claims, Parts
from runtime.agent.tasks.records import Stage
from runtime.protocol.hardware import GpuHolder

if TYPE_CHECKING:
    from runtime.agent.drivers.driver import Seen
    from runtime.agent.tasks.listing import Listing
    from runtime.agent.tasks.strangers import Strangers


@dataclasses.dataclass(frozen=True)
class Known:
    """What the engines' last listings tell. ``complete``: every engine that may run something of ours was listed;
    ``listed_at``: when the oldest of them was (None: none runs anything here)."""

    containers: Sequence[Seen]
    complete: bool
    listed_at: Optional[float]


class Holding:
    """Asked by any thread, once a beat."""

    def __init__(self, parts: Parts, claims: Claims) -> None:
        self._parts = parts
        self._claims = claims
        self._lock = threading.Lock()
        self._first_seen: dict[str, float] = {}

    def told(self, holders: Iterable[GpuHolder]) -> list[GpuHolder]:
        """``holders`` with whose they are. Memory that no process is seen to hold is no stranger's while a task has
        that card: not every tool shows every process."""
        holders = list(holders)
        now = self._parts.clock()
        with self._lock:
            places = {holder.container_id for holder in holders if holder.container_id is not None}
            self._first_seen = {place: self._first_seen.get(place, now) for place in places}
            first_seen = self._first_seen
        ours = {
            gpu.uuid for held in self._claims.all() if held.record.stage is not Stage.DONE for gpu in held.record.gpus
        }
        known = self._known()
        control_plane, node = self._parts.client.control_plane_id, self._parts.identity.node_id
        return [
            owned(holder, known, first_seen.get(holder.container_id or "", now), control_plane, node)
            for holder in holders
            if holder.pid is not None or holder.uuid not in ours
        ]

    def _known(self) -> Known:
        listings: list[Listing] = []
        complete = True
        for engine in self._parts.drivers.values():
            listing = engine.last.now()
            if listing is not None:
                listings.append(listing)
            elif not engine.absent():
                complete = False
        containers = [seen for listing in listings for seen in listing.containers]
        return Known(containers, complete, min((listing.at for listing in listings), default=None))


def users(claims: Claims, strangers: Strangers) -> Optional[dict[str, str]]:
    """Card or slice -> the task that has it, or the container of nobody's claim; None while an engine that may run one
    cannot be listed. A task that sleeps has left its cards, also one that is to wake: as long as one of them is named
    as failed it does not."""
    foreign, orphans = strangers.foreign(), strangers.orphans()
    if foreign is None or orphans is None:
        return None
    found = {uuid: f"container {one.container_id[:12]}" for one in (*foreign, *orphans) for uuid in one.gpus}
    for held in claims.all():
        if held.record.stage not in (Stage.DONE, Stage.SLEEPING):
            found.update({gpu.uuid: f"task {held.record.task_id}" for gpu in held.record.gpus})
    return found


def owned(
    holder: GpuHolder, known: Known, first_seen: float, control_plane_id: Optional[str], node_id: str
) -> GpuHolder:
    """One process that holds a card, with the task and control plane by its container's labels.

    ``ours`` of a process in a container is None as long as it is not known whose that is: the engine cannot be listed,
    was listed before the container was seen, or this agent does not know its control plane yet. One that keeps no task
    off its card (``ours`` is None already) stays so in a stranger's container.
    """
    place = holder.container_id
    if place is None:
        return holder
    seen = next((one for one in known.containers if place in (one.id, one.name)), None)
    if seen is None:
        certain = known.complete and (known.listed_at is None or known.listed_at > first_seen)
        return holder if certain else dataclasses.replace(holder, ours=None)
    own = is_own(seen, control_plane_id, node_id)
    unsure = control_plane_id is None or holder.ours is None
    return dataclasses.replace(
        holder,
        container_id=seen.id,
        task_id=seen.labels.get(LABEL_TASK),
        control_plane_id=seen.labels.get(LABEL_CONTROL_PLANE),
        ours=True if own else None if unsure else False,
    )
