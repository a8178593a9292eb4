"""Two server processes on PostgreSQL: the same rules, also when the dump is read back under them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from runtime.server.command import server
from tests.integration.postgres import Postgres
from tests.integration.restore.planes import SETTINGS, Speaker, is_status, submit
from tests.integration.server_core.plane import KEY, Plane, running, wait_until

UID = "11111111-2222-3333-4444-555555555555"


class Database:
    """One PostgreSQL database, dumped and read back by PostgreSQL's own programs."""

    def __init__(self, postgres: Postgres, url: str, folder: Path) -> None:
        self.postgres = postgres
        self.url = url
        self.file = folder / "dump.sql"

    def dump(self) -> None:
        command = [str(self.postgres.binaries / "pg_dump"), "--no-owner", "--clean", "--if-exists", self.url]
        self.file.write_bytes(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)

    def read_back(self) -> None:
        command = [str(self.postgres.binaries / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "--single-transaction"]
        subprocess.run([*command, "-f", str(self.file), self.url], check=True, capture_output=True, timeout=60)


@pytest.fixture
def database(postgres: Postgres, tmp_path: Path) -> Iterator[Database]:
    with postgres.database() as url:
        yield Database(postgres, url, tmp_path)


def test_a_dump_that_is_read_back_under_two_processes(database: Database, tmp_path: Path) -> None:
    url = database.url.replace("postgresql://", "postgresql+psycopg://")
    settings = {**SETTINGS, "database_url": url}
    config = tmp_path / "server.yaml"
    config.write_text(json.dumps({**settings, "state_dir": str(tmp_path / "0"), "api_key": KEY}))
    config.chmod(0o600)
    node = Speaker("gpu-a")
    with ExitStack() as stack:
        planes: list[Plane] = [
            stack.enter_context(
                running(tmp_path / str(number), secret_key_file=str(tmp_path / "secret.key"), **settings)
            )
            for number in range(2)
        ]
        first, second = planes
        second.operator_tokens = first.operator_tokens  # each would revoke the other's
        node.beat(first)
        submit(first, "old", node_id="nowhere")
        database.dump()
        newest = [submit(second, f"t-{number}", node_id="nowhere") for number in range(4)][-1]
        node.beat(first)
        seen = first.operator("GET", "/api/v1/events?limit=1000").body["events"][-1]["id"]
        is_status(first, newest["id"], "pending")

        database.read_back()
        for plane in planes:
            wait_until(lambda plane=plane: plane.call("GET", "/readyz").body["rolled_back"]["on"], "it knows, unasked")
        known = first.operator("GET", f"/api/v1/tasks/{newest['id']}")
        assert (known.status, known.code) == (503, "database_rolled_back")
        following = second.operator("GET", f"/api/v1/events?after={seen}").body["events"]
        assert [event["code"] for event in following if event["kind"] == "database_rolled_back"] == ["entered"]

        node.holds("lost", UID, 3, assigned=[node.card()])
        assert node.beat(second)["lost"] is not None
        node.beat(second)
        done = CliRunner().invoke(server, ["accept-restore", "--config", str(config), "--yes", "-o", "json"])
        assert done.exit_code == 0 and json.loads(done.stdout)["adopted"] == ["lost"], done.output
        for plane in planes:
            wait_until(lambda plane=plane: not plane.call("GET", "/readyz").body["rolled_back"]["on"], "it is over")
            assert is_status(plane, "lost", "running")["attempt"] == 3
        wait_until(lambda: [intent["uid"] for intent in node.beat(first)["intents"]] == [UID], "the other one knows")
        after = submit(second, "after")
        assert is_status(first, after["id"], "scheduled")["attempt"] == 1, "a new task has no past"
