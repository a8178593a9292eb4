"""One change of the database under way: what it touches is told with its commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from runtime.server.store import tables


@dataclass
class Tx:
    """One change under way: its connection, and what it touched.

    ``touch_task(uid)`` and ``touch_instruction(id)`` say which rows changed; they get the new revision at the end of
    the transaction. ``ended(reason)`` counts the end of an attempt. ``after(call)`` is run once the commit is on disk,
    in the thread that asked for the change. ``wiped``: a secret is gone from its row.
    """

    connection: sa.Connection
    revision: int | None = None
    wiped: bool = False
    _tasks: set[str] = field(default_factory=set)
    _instructions: set[str] = field(default_factory=set)
    _ends: Counter[str] = field(default_factory=Counter)
    _after: list[Callable[[], None]] = field(default_factory=list)

    def execute(self, statement: sa.Executable, parameters: Any = None) -> sa.CursorResult[Any]:
        return self.connection.execute(statement, parameters)

    def touch_task(self, uid: str) -> None:
        self._tasks.add(uid)

    def touch_instruction(self, instruction_id: str) -> None:
        self._instructions.add(instruction_id)

    def ended(self, reason: str) -> None:
        self._ends[reason] += 1

    def after(self, call: Callable[[], None]) -> None:
        self._after.append(call)

    def committed(self) -> None:
        for call in self._after:
            call()

    def seal(self) -> None:
        """The last statements of the transaction."""
        if not self._tasks and not self._instructions:
            return
        plane = tables.control_plane
        self.revision = self.connection.execute(
            sa.update(plane).values(revision=plane.c.revision + 1).returning(plane.c.revision)
        ).scalar_one()
        for table, column, keys in (
            (tables.tasks, tables.tasks.c.uid, self._tasks),
            (tables.instructions, tables.instructions.c.id, self._instructions),
        ):
            if keys:
                self.connection.execute(sa.update(table).where(column.in_(sorted(keys))).values(revision=self.revision))
        # Behind the control plane's row, which everybody who ends something waits for: nobody else is between.
        counts = tables.end_counts
        for reason, number in self._ends.items():
            grown = sa.update(counts).where(counts.c.reason == reason).values(count=counts.c.count + number)
            if not self.connection.execute(grown).rowcount:
                self.connection.execute(sa.insert(counts).values(reason=reason, count=number))
