"""A server process at the edge of what its machine gives it: open files, disk space, the right key file."""

from __future__ import annotations

import contextlib
import signal
import socket
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from runtime.server import open_files
from runtime.server.parts import build_parts
from runtime.server.settings import ServerSettings, with_keys
from runtime.server.store.errors import StoreError
from tests.integration.bad_input.places import fill, small_disk
from tests.integration.server_core.plane import FULL, KEY, running
from tests.integration.server_core.test_command import process, request


@pytest.mark.parametrize(
    ("files", "ports", "expected"), [(20256, 2, 10000), (1024, 2, 384), (1024, 1, 768), (40, 2, 10)]
)
def test_connections_leave_files_for_the_rest(files: int, ports: int, expected: int) -> None:
    assert open_files.connections(files, ports) == expected


def test_a_low_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    """A systemd service may open 1024 files unless it asks for more: beyond that nobody was answered."""
    low = ("prlimit", "--nofile=300:4096")
    with (
        process(tmp_path, before=low, HETEROFLEET_CONNECTION_LIMIT="1500") as (_, port),
        contextlib.ExitStack() as open_,
    ):
        for _ in range(600):
            open_.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        assert request(port, "GET", "/readyz")[0] == 200


def test_a_limit_that_cannot_be_raised_is_said_and_kept(tmp_path: Path) -> None:
    with process(tmp_path, before=("prlimit", "--nofile=400:400")) as (server, port):
        with contextlib.ExitStack() as open_:
            for _ in range(500):
                open_.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            assert len(list(Path(f"/proc/{server.pid}/fd").iterdir())) < 300
        assert request(port, "GET", "/readyz")[0] == 200
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=60)
    assert "connection_limit is 200 instead of 10000" in errors
    assert "Traceback" not in errors and len(errors.splitlines()) < 20, errors


def test_a_full_disk_does_not_keep_the_server_from_ending(tmp_path: Path) -> None:
    beat = {"protocol": 1, "node_id": "gpu-a", "instance_id": "instance-0001", "run": 1, "seq": 1, **FULL}
    names = {"X-API-Key": KEY, "X-Node-Id": "gpu-a", "X-Instance-Id": "instance-0001"}
    with small_disk(tmp_path / "small", "2m") as disk, process(disk) as (server, port):
        assert request(port, "POST", "/api/v1/agent/heartbeat", beat, **names)[0] == 200
        fill(disk)
        for seq in range(2, 6):
            # As long as there is room in the write-ahead log, what is heard is written all the same.
            more = {**beat, "seq": seq, "images": [f"registry/{seq}-{number}:1" for number in range(400)]}
            more["digests"] = {"images": str(seq)}
            assert request(port, "POST", "/api/v1/agent/heartbeat", more, **names)[0] == 200
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=60)
    assert "is not written" in errors
    assert server.returncode == 0 and "Traceback" not in errors, errors


def test_a_wrong_key_file_is_said_at_the_start(tmp_path: Path) -> None:
    """Every claim would be stored and then fail, again and again, with the work nowhere."""
    with running(tmp_path) as plane:
        made = plane.operator("POST", "/api/v1/tasks", {"name": "n", "image": "one:1", "env": {"A": "secret"}})
        assert made.status == 201
    (tmp_path / "secret.key").write_bytes(Fernet.generate_key())
    settings, _ = with_keys(ServerSettings(api_key=KEY, state_dir=str(tmp_path)))
    parts = build_parts(settings)
    with pytest.raises(StoreError, match=r"secret\.key is not the one") as refused:
        parts.start()
    parts.db.close()
    assert refused.value.exit_code == 78
