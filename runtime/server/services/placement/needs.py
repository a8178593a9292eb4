"""What stored tasks need, read once a task: a spec never changes under its uid.

With thousands of tasks that wait, taking their specs apart anew in every round would cost more than the
decision itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import sqlalchemy as sa

from runtime.server.services.placement.model import Need, need_of
from runtime.server.store.tables import tasks

CHUNK = 500
KEPT = 50_000
"""Beyond so many, everything is read anew: tasks come and go, and nobody says goodbye here."""


class Needs:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, Need] = {}

    def of(self, connection: sa.Connection, uids: Iterable[str]) -> dict[str, Need]:
        """uid -> need of those tasks that are (still) there."""
        wanted = list(uids)
        with self._lock:
            if len(self._known) > KEPT:
                self._known.clear()
            found = {uid: self._known[uid] for uid in wanted if uid in self._known}
        missing = [uid for uid in wanted if uid not in found]
        for start in range(0, len(missing), CHUNK):
            query = sa.select(tasks.c.uid, tasks.c.spec).where(tasks.c.uid.in_(missing[start : start + CHUNK]))
            found.update({row.uid: need_of(row.spec) for row in connection.execute(query)})
        with self._lock:
            self._known.update({uid: found[uid] for uid in missing if uid in found})
        return found


NEEDS = Needs()
"""Of the whole process: uids are never used twice, in whatever database."""
