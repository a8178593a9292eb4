"""A database that somebody else holds: refused for a moment, never an error, and nothing is lost."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from runtime.server.store import engines, tables
from tests.integration.server_core.plane import FULL, UNCHANGED, Agent, running, wait_until


@pytest.mark.case("FC-071")
def test_a_locked_database_costs_patience_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrent writers failed with "database is locked", requests ended in 500, and clients made it worse."""
    monkeypatch.setattr(engines, "BUSY_TIMEOUT_MS", 200)
    with running(tmp_path) as plane:
        known = Agent(plane, "gpu-known", "instance-known")
        assert known.beat(**FULL).status == 200
        with contextlib.closing(sqlite3.connect(tmp_path / "heterofleet.db", isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            fresh = Agent(plane, "gpu-fresh", "instance-fresh")
            refused = fresh.beat(**FULL)
            assert (refused.status, refused.code) == (503, "database_busy")
            assert int(refused.headers["retry-after"]) >= 1
            # Known nodes are answered from memory all the while.
            assert [known.beat(**UNCHANGED).status for _ in range(20)] == [200] * 20
            holder.execute("ROLLBACK")
        assert fresh.beat(**FULL).status == 200

        def stored() -> int:
            with plane.parts.db.read() as connection:
                return connection.execute(
                    sa.select(tables.nodes.c.seq).where(tables.nodes.c.id == "gpu-known")
                ).scalar_one()

        wait_until(lambda: stored() == known.seq, "what was heard meanwhile is written")


def test_beats_and_changes_at_once_meet_no_fault(tmp_path: Path) -> None:
    with running(tmp_path) as plane:
        statuses: list[int] = []

        def beats(number: int) -> None:
            agent = Agent(plane, f"gpu-{number}", f"instance-{number:04d}")
            statuses.extend(agent.beat(**FULL).status for _ in range(15))

        def changes(number: int) -> None:
            for turn in range(10):
                body = {"name": "t", "id": f"task-{number}-{turn}", "image": "registry/one:1"}
                statuses.append(plane.operator("POST", "/api/v1/tasks", body).status)

        plane.operator("GET", "/api/v1/nodes")
        threads = [threading.Thread(target=beats, args=(number,)) for number in range(12)]
        threads += [threading.Thread(target=changes, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(set(statuses)) == [200, 201]
        assert len(statuses) == 12 * 15 + 6 * 10
