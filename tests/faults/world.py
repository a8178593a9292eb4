"""What the checker looks at, and what it says: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tests.faults.ledger import Line, Told

TERMINAL = ("completed", "failed", "cancelled", "stopped")


class Invariant(str, Enum):
    """``SETTLING`` ones may be so for a moment after everything has ended: the checker is asked again."""

    LEDGER = "the ledger can be read"
    ONCE = "every task started at most once per attempt"
    TOGETHER = "no two attempts alive together after contact"
    END = "every end equals what the container really did"
    CONTAINER = "no container lost"
    LEFTOVER = "no container left over"
    TASK = "no task lost"
    CARDS = "cards free, allocations equal to holders"


SETTLING = (Invariant.LEFTOVER, Invariant.CARDS, Invariant.TASK, Invariant.CONTAINER, Invariant.TOGETHER)


@dataclass(frozen=True)
class Violation:
    invariant: Invariant
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text} [{self.invariant.value}]"


@dataclass(frozen=True)
class Box:
    """One container of ours, by `docker inspect`; ``state`` in the engine's words."""

    node: str
    id: str
    task_id: str
    uid: str
    attempt: int
    state: str
    exit_code: int | None = None

    @property
    def alive(self) -> bool:
        return self.state in ("running", "paused", "restarting")


@dataclass(frozen=True)
class Card:
    node: str
    uuid: str
    allocated_to: tuple[str, ...] = ()
    mode: str = "whole"


@dataclass(frozen=True)
class World:
    """``tasks``: the server's answer about each accepted id (as read by the API), None for 404. ``wakes``: how often
    the server saw a task wake. ``clock_offset``: seconds since the epoch minus the machine's uptime."""

    lines: tuple[Line, ...] = ()
    told: tuple[Told, ...] = ()
    boxes: tuple[Box, ...] = ()
    tasks: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    cards: tuple[Card, ...] = ()
    wakes: Mapping[str, int] = field(default_factory=dict)
    clock_offset: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """What the test itself did. ``open``: ids that shall still live. ``deleted``: ids that were deleted. ``excused``:
    infrastructure reasons that its faults explain. ``contact``: for each node that was cut off, the uptime (s) of
    the first contact after it; copies may run beside each other until ``grace_s`` after that."""

    open: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()
    excused: frozenset[str] = frozenset()
    contact: Mapping[str, float] = field(default_factory=dict)
    grace_s: float = 15.0
