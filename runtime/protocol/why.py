"""Why something is as it is: every constraint on every node, the nearest miss first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional


@dataclass(frozen=True)
class WhySubject:
    """``kind``: task, node or gpu."""

    kind: str
    id: str


@dataclass(frozen=True)
class WhyConstraint:
    """``code`` is stable; ``have`` and ``want`` are what stands against what; ``text`` is for people."""

    code: str
    ok: bool
    have: Any = None
    want: Any = None
    text: str = ""
    evidence: Any = None


@dataclass(frozen=True)
class WhyNode:
    """``distance``: how many constraints do not hold; 0 fits."""

    node_id: str
    distance: int
    constraints: list[WhyConstraint] = field(default_factory=list)


@dataclass(frozen=True)
class SmallestChange:
    """What would make it fit: the constraint to satisfy on that node."""

    code: str
    node_id: Optional[str] = None
    text: str = ""


@dataclass(frozen=True)
class Why:
    """``GET /api/v1/{tasks|nodes|gpus}/{id}/why``. ``since``: since when it waits."""

    subject: WhySubject
    state: str
    summary: str
    since: Optional[str] = None
    fits: bool = False
    nodes: list[WhyNode] = field(default_factory=list)
    smallest_change: Optional[SmallestChange] = None
