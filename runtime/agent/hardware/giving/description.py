"""What a vendor's module says of giving its cards, what is read of the host for it, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from runtime.protocol.hardware import Gpu


class NotGiven(Exception):
    """A card cannot be given to a task here and now; the message says which, what is missing, and where."""


@dataclass(frozen=True)
class Card:
    """A card of the inventory as it is now. ``tells``: what only its vendor's tool says of it (``phy_id``,
    ``device_node``, ...); it stays on this node."""

    gpu: Gpu
    tells: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceFile:
    """``bus_id``: the PCI device that the kernel says it is of, in the normal form. ``group``: whose members may read
    and write it."""

    path: str
    bus_id: Optional[str] = None
    group: Optional[int] = None


@dataclass(frozen=True)
class Host:
    """``files``: device files that are there, of those that a description names; ``places``: its files and folders
    that are there. ``runtimes``: the engine's."""

    files: tuple[DeviceFile, ...] = ()
    places: frozenset[str] = frozenset()
    runtimes: tuple[str, ...] = ()


Files = Callable[[Card, Sequence[Card], Host], Sequence[str]]
"""(card, all cards of its vendor here, host) -> the device files that are this card's alone. Those that have to be
there are named also when they are missing. Raises NotGiven when nobody can say which they are."""

Number = Callable[[Card], Optional[int]]


def index(card: Card) -> Optional[int]:
    """As the tool counts now: when a card is gone, those behind it may have other numbers."""
    return card.gpu.index


@dataclass(frozen=True)
class Runtime:
    """A runtime that a vendor adds to the engine: it gives the cards that ``variable`` names by ``number``.
    ``none``: its word for no card; None when an unset variable means none."""

    name: str
    variable: str
    number: Number = index
    none: Optional[str] = None


@dataclass(frozen=True)
class Giving:
    """How a vendor's cards are given.

    ``patterns``: its device files. ``control``: those that every task with a card needs. ``mounts``: the driver's
    tools and libraries, shown read-only where they are. ``variables``: what the vendor's libraries read, the first by
    ``number`` in a plain process; ``owned``: others that could make a runtime or a library hand out cards.
    """

    files: Files
    patterns: Sequence[str]
    variables: Sequence[str]
    control: Sequence[str] = ()
    mounts: Sequence[str] = ()
    runtimes: Sequence[Runtime] = ()
    number: Number = index
    owned: Sequence[str] = ()

    def all_variables(self) -> tuple[str, ...]:
        return (*self.variables, *(runtime.variable for runtime in self.runtimes), *self.owned)


@dataclass(frozen=True)
class CardOptions:
    """What a task gets for its cards. ``environment``: variables that belong to the agent. ``runtime`` and
    ``requests``: the engine's own ways. ``files``: device files; ``groups``: who may open them; ``mounts``: shown
    read-only at their own paths. ``named``: what says on this node which cards these are; empty where the cards'
    uuids do."""

    environment: Mapping[str, str] = field(default_factory=dict)
    runtime: Optional[str] = None
    requests: tuple[Mapping[str, Any], ...] = ()
    files: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    mounts: tuple[str, ...] = ()
    named: str = ""
