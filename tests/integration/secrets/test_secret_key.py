"""The file that opens sealed secrets: made for the server alone, never guessed, never replaced silently."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet

from runtime.server.exit_codes import EXIT_CANNOT_WRITE, EXIT_CONFIGURATION
from runtime.server.store.errors import StoreError
from runtime.server.store.tables import tasks
from runtime.server.store.vault import Vault, VaultError
from tests.integration.server_core.plane import running
from tests.integration.server_tasks.conftest import start_plane


def started(folder: Path, *, with_secrets: bool) -> Path:
    """A server that ran on this folder, and is stopped: its key file."""
    plane, stop = start_plane(folder)
    plane.create("t1", env={"TOKEN": "swordfish"} if with_secrets else {})
    stop()
    return folder / "secret.key"


def refused(folder: Path) -> StoreError:
    with pytest.raises(StoreError) as caught, running(folder):
        pass
    return caught.value


def starts(folder: Path) -> list[str]:
    """The ids of the tasks of a server that starts on this folder."""
    with running(folder) as plane:
        return [task["id"] for task in plane.operator("GET", "/api/v1/tasks").body["tasks"]]


def test_it_is_made_for_the_servers_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        key = started(tmp_path / "server", with_secrets=True)
    finally:
        os.umask(before)
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(Fernet(key.read_bytes().strip()).encrypt(b"x")) > 20
    files = [path for path in key.parent.rglob("*") if path.is_file() and path != key]
    assert files and not any(key.read_bytes().strip() in path.read_bytes() for path in files)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o666, 0o602])
def test_open_to_others_it_is_refused(tmp_path: Path, mode: int) -> None:
    key = started(tmp_path / "server", with_secrets=True)
    key.chmod(mode)
    error = refused(tmp_path / "server")
    assert error.exit_code == EXIT_CONFIGURATION
    assert f"mode {mode:04o}" in str(error) and f"chmod 600 {key}" in str(error)
    key.chmod(0o400)
    assert starts(tmp_path / "server") == ["t1"]


def test_missing_beside_sealed_secrets_it_is_asked_for_and_not_made_anew(tmp_path: Path) -> None:
    """A new one would look well until the first claim, and bury the old one."""
    key = started(tmp_path / "server", with_secrets=True)
    kept = key.rename(tmp_path / "kept")
    error = refused(tmp_path / "server")
    assert error.exit_code == EXIT_CONFIGURATION and "is missing" in str(error) and str(key) in str(error)
    assert not key.exists()
    kept.rename(key)
    assert starts(tmp_path / "server") == ["t1"]


def test_missing_where_nothing_is_sealed_it_is_made_anew(tmp_path: Path) -> None:
    """How it is changed: when no task that has secrets waits or runs."""
    key = started(tmp_path / "server", with_secrets=False)
    before = key.read_bytes()
    key.unlink()
    assert starts(tmp_path / "server") == ["t1"]
    assert key.read_bytes() != before


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Fernet.generate_key(), "not the one that the secrets in this database were sealed with"),
        (b"", "does not hold a key"),
        (b"not a key", "does not hold a key"),
        (b"\x00" * 44, "does not hold a key"),
    ],
)
def test_another_file_in_its_place_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    key = started(tmp_path / "server", with_secrets=True)
    key.write_bytes(data)
    error = refused(tmp_path / "server")
    assert error.exit_code == EXIT_CONFIGURATION and words in str(error)
    assert not data or data.decode("latin-1") not in str(error)
    assert key.read_bytes() == data


def test_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "server" / "secret.key").mkdir(parents=True)
    assert refused(tmp_path / "server").exit_code in (EXIT_CANNOT_WRITE, EXIT_CONFIGURATION)


def test_equal_secrets_do_not_look_equal_in_the_database(tmp_path: Path) -> None:
    plane, stop = start_plane(tmp_path / "server")
    for name in ("t1", "t2"):
        plane.create(name, env={"TOKEN": "swordfish"})
    first, second = (row["secrets"] for row in plane.rows(sa.select(tasks)))
    assert first != second
    stop()


def test_a_sealed_value_that_was_changed_does_not_open(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "secret.key")
    sealed = vault.seal({"env": {"A": "1"}})
    for place in (10, len(sealed) // 2, len(sealed) - 5):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(VaultError):
            vault.open(bytes(changed))
    assert vault.open(sealed) == {"env": {"A": "1"}}
