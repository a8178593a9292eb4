"""What was heard and is not on disk yet: which nodes, and what becomes an event. In memory; safe in threads."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from runtime.server.services import cards as card_rules


@dataclass(frozen=True)
class Noted:
    """Something a beat brought that becomes an event: written by the next round."""

    node_id: str
    change: card_rules.Change | None = None
    text: str = ""
    code: str = ""


class Backlog:
    """The flusher takes all of it, and then says that it was written or gives back what was not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: set[str] = set()
        self._writing: set[str] = set()
        self._noted: list[Noted] = []

    def __len__(self) -> int:
        """How many nodes were heard and are not written yet."""
        with self._lock:
            return len(self._nodes | self._writing)

    def add(self, node_id: str, noted: Iterable[Noted] = ()) -> None:
        """The node was heard."""
        with self._lock:
            self._nodes.add(node_id)
            self._noted.extend(noted)

    def take(self) -> tuple[set[str], list[Noted]]:
        """The nodes that were heard, and what was noted, since the last call."""
        with self._lock:
            self._writing, self._nodes = self._nodes, set()
            noted, self._noted = self._noted, []
            return set(self._writing), noted

    def wrote(self) -> None:
        """What was taken is on disk."""
        with self._lock:
            self._writing = set()

    def give_back(self, node_ids: Collection[str], noted: Collection[Noted]) -> None:
        """These could not be written, the rest of what was taken is on disk."""
        with self._lock:
            self._nodes.update(node_ids)
            self._writing = set()
            self._noted[:0] = noted
