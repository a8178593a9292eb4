"""The file behind the database goes, is replaced, is damaged, or is somebody else's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runtime.server.parts import build_parts
from runtime.server.settings import ServerSettings, with_keys
from runtime.server.store.errors import StoreError
from tests.integration.server_core.plane import FULL, KEY, Agent, Plane, running

TASK = {"name": "n", "image": "registry/one:1"}


def create(plane: Plane) -> tuple[int, str | None]:
    answer = plane.operator("POST", "/api/v1/tasks", TASK)
    return answer.status, answer.code


def database(folder: Path) -> Path:
    return folder / "heterofleet.db"


def test_nothing_is_acknowledged_into_a_file_without_a_name(plane: Plane, tmp_path: Path) -> None:
    """An rm in the state folder: the open file goes on taking writes, and all of them end with the process."""
    assert create(plane) == (201, None)
    aside = tmp_path / "aside.db"
    database(tmp_path).rename(aside)

    refused = plane.operator("POST", "/api/v1/tasks", TASK)
    assert (refused.status, refused.code) == (503, "database_busy")
    assert refused.headers["retry-after"] and "removed or replaced" in refused.body["detail"]
    assert plane.operator("GET", "/api/v1/tasks").code == "database_busy"
    assert not database(tmp_path).exists(), "an empty database was made in its place"

    aside.rename(database(tmp_path))
    assert create(plane) == (201, None)


def test_another_database_under_the_name_is_not_taken_for_ours(plane: Plane, tmp_path: Path) -> None:
    assert create(plane) == (201, None)
    copy = tmp_path / "copy.db"
    shutil.copy(database(tmp_path), copy)
    copy.replace(database(tmp_path))
    assert create(plane) == (503, "database_busy")


def test_agents_are_answered_while_the_file_is_away(plane: Plane, tmp_path: Path) -> None:
    agent = Agent(plane)
    assert agent.beat(**FULL).status == 200
    database(tmp_path).rename(tmp_path / "aside.db")
    assert agent.beat(**FULL).status == 200
    (tmp_path / "aside.db").rename(database(tmp_path))


def test_a_damaged_file_is_said_and_is_no_fault_of_the_request(plane: Plane, tmp_path: Path) -> None:
    for _ in range(20):
        assert create(plane) == (201, None)
    plane.operator("GET", "/api/v1/tasks")
    with plane.parts.db.read() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    plane.parts.db.engine.dispose()
    whole = database(tmp_path).read_bytes()
    with database(tmp_path).open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (len(whole) - 4096))

    refused = plane.operator("GET", "/api/v1/tasks")
    assert (refused.status, refused.code) == (503, "database_busy"), refused.raw
    assert "damaged" in refused.body["detail"]

    with database(tmp_path).open("r+b") as file:
        file.write(whole)
    plane.parts.db.engine.dispose()


def test_a_second_server_does_not_serve_the_same_file(plane: Plane, tmp_path: Path) -> None:
    """What a server knows of its nodes is in its memory: the second would find all of the first one's lost."""
    settings, _ = with_keys(ServerSettings(api_key=KEY, state_dir=str(tmp_path)))
    second = build_parts(settings)
    with pytest.raises(StoreError, match="served by another process") as refused:
        second.start()
    assert refused.value.exit_code == 69
    second.db.close()
    assert create(plane) == (201, None)


def test_the_file_is_free_again_when_its_server_has_stopped(tmp_path: Path) -> None:
    for _ in range(2):
        with running(tmp_path) as plane:
            assert create(plane) == (201, None)


def test_only_the_server_reads_the_database(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    with running(folder) as plane:
        assert create(plane) == (201, None)
        modes = {path.name: oct(path.stat().st_mode & 0o777) for path in folder.iterdir() if path.is_file()}
    assert len(modes) >= 5 and set(modes.values()) == {"0o600"}, modes
