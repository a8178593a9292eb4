"""The highest revision seen of each control plane: what tells that a database was put back.

Every answer counts, not the heartbeat's alone: a claim may be stored between two beats. Those of other control planes
are remembered, too: a server that came up with an empty database for an hour is not the one whose backup follows.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Optional

KEPT = 8
"""So many control planes at most, those heard last."""


class SeenRevisions:
    """Safe to use from several threads. ``known``: what an earlier run of this agent has seen."""

    def __init__(self, known: Optional[Mapping[str, int]] = None) -> None:
        self._lock = threading.Lock()
        self._highest: dict[str, int] = dict(known or {})

    def note(self, control_plane_id: str, revision: int) -> None:
        """This control plane has shown this revision."""
        with self._lock:
            known = self._highest.pop(control_plane_id, revision)
            self._highest[control_plane_id] = max(known, revision)
            while len(self._highest) > KEPT:
                del self._highest[next(iter(self._highest))]

    def highest(self, control_plane_id: Optional[str]) -> Optional[int]:
        """None when nothing was ever seen of it."""
        with self._lock:
            return self._highest.get(control_plane_id) if control_plane_id is not None else None

    def all(self) -> dict[str, int]:
        """For the disk; heard last comes last."""
        with self._lock:
            return dict(self._highest)


def read_seen(stored: Mapping[str, Any]) -> dict[str, int]:
    """What a status file says; one of an earlier release knows of one control plane only."""
    found: dict[str, int] = {}
    told = {stored.get("control_plane_id"): stored.get("seen_revision"), **_mapping(stored.get("seen_revisions"))}
    for name, revision in told.items():
        if isinstance(name, str) and isinstance(revision, int) and not isinstance(revision, bool):
            found[name] = revision
    return found


def _mapping(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}
