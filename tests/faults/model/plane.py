"""The control plane in this process: all of its services over a real database, its rounds run by hand."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any, cast

import flask
import sqlalchemy as sa

from runtime.protocol import times
from runtime.server.app import assemble
from runtime.server.parts import Parts, build_parts
from runtime.server.services.restore import accept
from runtime.server.settings import ServerSettings
from runtime.server.store.tables import gpu_allocations, tasks
from tests.faults.model.clock import Clock
from tests.faults.world import TERMINAL
from tests.integration.server_tasks.conftest import KEY, add_tokens

INTERVAL_S = 5.0


class Plane:
    """``app`` is None while it is down."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self._clock = folder, clock
        self.folder.mkdir(parents=True)
        self.app: flask.Flask | None = None
        self._parts: Parts | None = None
        self.start()
        add_tokens(self.parts)
        self.copied = False

    @property
    def parts(self) -> Parts:
        assert self._parts is not None
        return self._parts

    @property
    def database(self) -> Path:
        return self.folder / "heterofleet.db"

    # Life

    def start(self) -> None:
        settings = ServerSettings(
            listen="127.0.0.1:0", doorbell_listen="", api_key=KEY, state_dir=str(self.folder), brake_min_nodes=99
        )
        self._parts = build_parts(settings)
        self._parts.start()
        background = self._background()
        background._observer._clock = self._clock.monotonic
        self.app = assemble(self._parts)

    def stop(self) -> None:
        """As by SIGTERM; the files are whole then."""
        if self._parts is not None:
            self._parts.stop()
        self.app, self._parts = None, None

    def restart(self) -> None:
        self.stop()
        self.start()

    def tick(self) -> None:
        """What the background threads do in a second."""
        if self._parts is None:
            return
        background = self._background()
        for ticker in (background._keeper, background._flusher, background._rounds, background._keeper):
            ticker.run()
        background._observer.run()

    def _background(self) -> Any:
        background = self.parts.background
        assert background is not None
        return background

    # The database

    def copy(self) -> None:
        with (
            contextlib.closing(sqlite3.connect(self.database)) as source,
            contextlib.closing(sqlite3.connect(self.folder / "copy.db")) as made,
        ):
            source.backup(made)
        self.copied = True

    def put_back(self) -> None:
        """The copy in the database's place, by the book."""
        self.stop()
        for end in ("", "-wal", "-shm"):
            Path(f"{self.database}{end}").unlink(missing_ok=True)
        shutil.copy(self.folder / "copy.db", self.database)
        self.start()

    def accept(self, *, force: bool) -> bool:
        """The operator's ``accept-restore``; whether it was done, or there was nothing to do."""
        settings = self.parts.settings
        patience_s = accept.patience(settings.heartbeat_interval_s).total_seconds()
        done = accept.accept(
            self.parts.db, {}, "adopt", times.now(), force=force, patience_s=patience_s, mps_max=settings.mps_max
        )
        return done.done or done.facts.nothing_to_do

    @property
    def rolled_back(self) -> bool:
        return self._parts is not None and self._parts.rollback.active

    # What is asked of it

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """An operator's call."""
        if self.app is None:
            return 0, None
        headers = {"Authorization": "Bearer admin-token"}
        answer = self.app.test_client().open(f"/api/v1{path}", method=method, json=body, headers=headers)
        return answer.status_code, json.loads(answer.data) if answer.data else None

    def rows(self) -> list[dict[str, Any]]:
        """Every task's row, by the database itself."""
        columns = tasks.c.id, tasks.c.uid, tasks.c.status, tasks.c.reason, tasks.c.exit_code, tasks.c.attempt
        with self.parts.db.read() as connection:
            return [dict(row) for row in connection.execute(sa.select(*columns, tasks.c.node_id)).mappings()]

    def open_rows(self) -> list[dict[str, Any]]:
        """Of tasks that have no end; none is known while it is down."""
        return [row for row in self.rows() if row["status"] not in TERMINAL] if self._parts is not None else []

    def task(self, task_id: str) -> dict[str, Any] | None:
        status, body = self.call("GET", f"/tasks/{task_id}")
        return cast("dict[str, Any]", body) if status == 200 else None

    def held_cards(self) -> list[tuple[str, str]]:
        with self.parts.db.read() as connection:
            return [
                tuple(row) for row in connection.execute(sa.select(gpu_allocations.c.gpu_uuid, gpu_allocations.c.uid))
            ]
