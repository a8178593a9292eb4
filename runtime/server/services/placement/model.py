"""What the decision looks at: what a task needs, and what a node has left. Memory in MiB."""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from runtime.protocol.engines import AUTO
from runtime.protocol.hardware import Gpu
from runtime.protocol.nodes import CardHealth
from runtime.protocol.states import Driver
from runtime.protocol.vendors import VIRTUAL
from runtime.server.services.node_view import NodeView

WHOLE_SLOT = 0


@dataclass(frozen=True)
class CardNeed:
    """Which cards, from ``gpus`` of a task. Equal needs hash equal, so they are looked at once."""

    count: int
    vendor: str | None = None
    model: str | None = None
    gpu_class: str | None = None
    min_memory_mib: int | None = None
    uuids: tuple[str, ...] | None = None
    slice: str | None = None
    mps: bool = False
    same_nvlink_domain: bool = False


@dataclass(frozen=True)
class Need:
    """What a task needs of a node. ``image`` is a wish, and so are ``model`` and ``engine``: of a task that leaves its
    image to the node."""

    driver: Driver = Driver.DOCKER
    node_id: str | None = None
    node_selector: tuple[tuple[str, str], ...] = ()
    cards: CardNeed | None = None
    cpus: float = 0
    memory_mib: int = 0
    host_ports: tuple[int, ...] = ()
    image: str | None = None
    model: str | None = None
    engine: str = AUTO


@dataclass(frozen=True)
class Candidate:
    """A pending task. ``attempt`` is the number of the last one; ``excluded``: nodes that are left out."""

    uid: str
    task_id: str
    attempt: int
    priority: int
    created_at: str
    need: Need
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Held:
    """One row of the allocations: a card, or a part of it, that somebody holds."""

    node_id: str
    parent_uuid: str
    slot: int
    gpu_uuid: str
    mode: str


@dataclass(frozen=True)
class Occupant:
    """A task that is on a node already."""

    node_id: str
    need: Need


@dataclass(frozen=True)
class Pick:
    """A card, or a part of one, for an attempt."""

    card: Gpu
    parent_uuid: str
    slot: int
    mode: str


@dataclass(frozen=True)
class Assignment:
    candidate: Candidate
    node_id: str
    picks: tuple[Pick, ...]


@dataclass
class Site:
    """A node, and what is left of it while a decision is being made."""

    view: NodeView
    mps_max: int
    tasks: int = 0
    cpus: float = 0
    memory_mib: int = 0
    ports: set[int] = field(default_factory=set)
    held: dict[str, dict[int, Held]] = field(default_factory=dict)
    parents: frozenset[str] = frozenset()
    mig: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        # A card that is cut into slices is not offered whole.
        self.parents = frozenset(card.parent_uuid for card in self.view.gpus if card.parent_uuid is not None)
        self.mig = mig_cards(self.view)

    def take(self, need: Need, picks: Iterable[Pick]) -> None:
        """Count a task in."""
        self.tasks += 1
        self.cpus += need.cpus
        self.memory_mib += need.memory_mib
        self.ports.update(need.host_ports)
        self.hold(picks)

    def hold(self, picks: Iterable[Pick]) -> None:
        """These cards are taken from now on."""
        for pick in picks:
            row = Held(self.view.node_id, pick.parent_uuid, pick.slot, pick.card.uuid, pick.mode)
            self.held.setdefault(pick.parent_uuid, {})[pick.slot] = row

    def lacks(self, need: Need) -> tuple[bool, bool]:
        """Whether the image, or the engine of a task without one, and the model are not known to be here."""
        if need.model is None:
            return need.image is None or need.image not in (self.view.images or ()), False
        engines = self.view.engines or frozenset()
        there = bool(engines) if need.engine == AUTO else need.engine in engines
        return not there, need.model not in (self.view.models or ())

    def healthy(self, card: Gpu) -> bool:
        """The card, and the one that it is a slice of, are known to be well."""
        names = [card.uuid] if card.parent_uuid is None else [card.uuid, card.parent_uuid]
        return all(self.view.card_health.get(name, CardHealth.UNKNOWN) is CardHealth.OK for name in names)

    def is_free(self, card: Gpu) -> bool:
        """Whether nobody holds this slice, or its card."""
        return self._slice(card) is not None

    def pick(self, card: Gpu, wanted: CardNeed) -> Pick | None:
        """How the card is taken as wanted, None while it is not free for that."""
        if wanted.slice is not None:
            return self._slice(card)
        taken = self.held.get(card.uuid, {})
        if not wanted.mps:
            return None if taken else Pick(card, card.uuid, WHOLE_SLOT, "whole")
        if any(row.mode != "mps" for row in taken.values()):
            return None
        slot = next((slot for slot in range(1, self.mps_max + 1) if slot not in taken), None)
        return Pick(card, card.uuid, slot, "mps") if slot is not None else None

    def _slice(self, card: Gpu) -> Pick | None:
        parent = card.parent_uuid or card.uuid
        taken = self.held.get(parent, {})
        # The card's own slot is held by a task that has it whole, or by a request that cuts it.
        if WHOLE_SLOT in taken or any(row.mode == "mps" or row.gpu_uuid == card.uuid for row in taken.values()):
            return None
        return Pick(card, parent, slice_slot(card), slice_mode(card.vendor))


def slice_mode(vendor: str) -> str:
    """How a vendor's cards are cut, as an allocation has it."""
    return "hami" if vendor == "hygon" else "mig"


def mig_cards(view: NodeView) -> frozenset[str]:
    """Cards whose MIG mode is on now, cut or not: no program finds one by its own UUID, only its slices."""
    return frozenset(uuid for uuid, known in view.capabilities.items() if known.mig_capable is True)


def slice_slot(card: Gpu) -> int:
    """A slice's slot on its parent: from its placement, never the whole card's."""
    return slot_of(card.gi_id or 0, card.ci_id or 0)


def slot_of(gi_id: int, ci_id: int) -> int:
    return 1 + gi_id * 64 + ci_id


def fits_shape(card: Gpu, wanted: CardNeed, parents: frozenset[str]) -> bool:
    """Whole cards for whole-card and MPS tasks, slices of that profile for slice tasks."""
    if wanted.slice is not None:
        return card.parent_uuid is not None and card.profile == wanted.slice
    return card.parent_uuid is None and card.uuid not in parents


def shape(card: Gpu, parents: frozenset[str]) -> str:
    """In the words of ``fits_shape``'s wants: a slice's profile, or a whole card."""
    if card.parent_uuid is not None:
        return card.profile or "a slice of unknown profile"
    return "cut into slices" if card.uuid in parents else "whole card"


def fits_vendor(card: Gpu, wanted: CardNeed) -> bool:
    return card.vendor == wanted.vendor if wanted.vendor is not None else card.vendor != VIRTUAL


def fits_model(card: Gpu, wanted: CardNeed) -> bool:
    """The pattern is a shell's; case does not count, since tools and releases differ in it."""
    return wanted.model is None or (
        card.model is not None and fnmatch.fnmatchcase(card.model.lower(), wanted.model.lower())
    )


def need_of(spec: dict[str, Any]) -> Need:
    """What a stored spec needs. With the host's network every port is the host's own."""
    gpus = spec.get("gpus")
    host_network = spec.get("network") == "host"
    ports = [port["host"] or (port["container"] if host_network else None) for port in spec.get("ports") or ()]
    return Need(
        driver=Driver(spec["driver"]),
        node_id=spec.get("node_id"),
        node_selector=tuple(sorted((spec.get("node_selector") or {}).items())),
        cards=_cards_of(gpus) if gpus else None,
        cpus=spec.get("cpus") or 0,
        memory_mib=spec.get("memory_mib") or 0,
        host_ports=tuple(sorted(port for port in ports if port is not None)),
        image=_reference(spec["image"]) if spec.get("image") is not None else None,
        model=spec.get("model") if spec.get("image") is None else None,
        engine=(spec.get("engine") or AUTO) if spec.get("image") is None else AUTO,
    )


def _reference(image: str) -> str:
    """As an engine names it in its list: with the tag that stands for none."""
    return image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest"


def _cards_of(gpus: dict[str, Any]) -> CardNeed:
    uuids = gpus.get("uuids")
    return CardNeed(
        count=gpus["count"],
        vendor=gpus.get("vendor"),
        model=gpus.get("model"),
        gpu_class=gpus.get("class"),
        min_memory_mib=gpus.get("min_memory_mib"),
        uuids=tuple(uuids) if uuids is not None else None,
        slice=gpus.get("slice"),
        mps=gpus.get("mps") or False,
        same_nvlink_domain=gpus.get("same_nvlink_domain") or False,
    )


def sites_of(
    views: Iterable[NodeView], occupants: Iterable[Occupant], held: Iterable[Held], mps_max: int
) -> dict[str, Site]:
    """Every node with what its tasks and its allocations leave of it."""
    sites = {view.node_id: Site(view, mps_max) for view in views}
    for occupant in occupants:
        if occupant.node_id in sites:
            sites[occupant.node_id].take(occupant.need, ())
    rows: dict[tuple[str, str], dict[int, Held]] = defaultdict(dict)
    for row in held:
        rows[(row.node_id, row.parent_uuid)][row.slot] = row
    for (node_id, parent), taken in rows.items():
        if node_id in sites:
            sites[node_id].held[parent] = taken
    return sites
