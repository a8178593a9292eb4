"""``heterofleet server`` as a process: how it starts, what it refuses with which exit code, how it ends."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.protocol.settings import SettingsError
from runtime.server.settings import load
from tests.integration.server_core.plane import FULL, KEY, wait_until

PROGRAM = Path(sys.executable).with_name("heterofleet")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HETEROFLEET_")}
    return {**kept, **variables}


def server(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROGRAM), "server", *words],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@contextlib.contextmanager
def process(
    state: Path, *words: str, before: tuple[str, ...] = (), **variables: str
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A running server; yields it and its port once it is ready. ``before``: a program that starts it."""
    port = free_port()
    with subprocess.Popen(
        [*before, str(PROGRAM), "server", "run", "--state-dir", str(state), "--listen", f"127.0.0.1:{port}", *words],
        env=environment(**{"HETEROFLEET_DOORBELL_LISTEN": "", "HETEROFLEET_API_KEY": KEY, **variables}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as made:
        try:
            wait_until(lambda: made.poll() is not None or ready(port), "the server is ready", 30)
            yield made, port
        finally:
            if made.poll() is None:
                made.kill()


def ready(port: int) -> bool:
    try:
        return request(port, "GET", "/readyz")[0] == 200
    except OSError:
        return False


def request(port: int, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        data = json.dumps(body).encode() if body is not None else None
        connection.request(method, path, data, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


def test_it_serves_and_ends_cleanly(tmp_path: Path) -> None:
    with process(tmp_path) as (running, port):
        assert request(port, "GET", "/healthz") == (200, {"status": "ok"})
        running.send_signal(signal.SIGTERM)
        output, errors = running.communicate(timeout=30)
        assert (running.returncode, output) == (0, "")
        assert "Traceback" not in errors
        assert KEY not in errors
    assert (tmp_path / "secret.key").stat().st_mode & 0o777 == 0o600


def test_a_request_in_flight_is_answered_after_sigterm(tmp_path: Path) -> None:
    body = json.dumps(
        {"protocol": 1, "node_id": "gpu-a", "instance_id": "instance-0001", "run": 1, "seq": 1, **FULL}
    ).encode()
    head = (
        f"POST /api/v1/agent/heartbeat HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\nX-Node-Id: gpu-a\r\n"
        f"X-Instance-Id: instance-0001\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    with process(tmp_path) as (running, port), socket.create_connection(("127.0.0.1", port), timeout=30) as half:
        half.sendall(head + body[:10])
        # The server has read the first half once it answers another request that came later.
        assert request(port, "GET", "/healthz")[0] == 200
        running.send_signal(signal.SIGTERM)
        wait_until(lambda: refuses(port), "new connections are refused")
        half.sendall(body[10:])
        answer = half.recv(65536).decode()
        assert answer.startswith("HTTP/1.1 200"), answer
        assert running.wait(30) == 0


def test_clients_that_keep_asking_do_not_hold_the_end_up(tmp_path: Path) -> None:
    """Each answer on a kept connection brought the next request: after 20 s they were cut in the middle."""
    cut: list[str] = []

    def ask(port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.connect()
        while connection.sock is not None:  # closed by the answer that said so
            connection.auto_open = 0
            try:
                connection.request("GET", "/install-agent.sh")
                connection.getresponse().read()
            except (OSError, http.client.HTTPException) as error:
                cut.append(repr(error))
                return

    with process(tmp_path) as (running, port):
        clients = [threading.Thread(target=ask, args=(port,)) for _ in range(8)]
        for client in clients:
            client.start()
        wait_until(lambda: request(port, "GET", "/healthz")[0] == 200, "it answers under load")
        began = time.monotonic()
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
        assert time.monotonic() - began < 10
        for client in clients:
            client.join(30)
    assert cut == []


def test_a_hangup_ends_it_cleanly(tmp_path: Path) -> None:
    with process(tmp_path) as (running, _):
        running.send_signal(signal.SIGHUP)
        _, errors = running.communicate(timeout=30)
    assert running.returncode == 0 and "stopped" in errors


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return True
    return False


def test_dev_mode_makes_a_key_and_shows_it_once(tmp_path: Path) -> None:
    port = free_port()
    with subprocess.Popen(
        [str(PROGRAM), "server", "run", "--mode", "dev", "--state-dir", str(tmp_path / "dev")]
        + ["--listen", f"0.0.0.0:{port}", "--doorbell-listen", ""],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as dev:
        assert dev.stdout is not None
        line = dev.stdout.readline()
        assert line.startswith("dev mode: system key ")
        key = line.split()[-1]
        wait_until(lambda: ready(port), "it is ready", 30)
        assert request(port, "GET", "/api/v1/agent/preflight", **{"X-API-Key": key})[0] == 200
        dev.send_signal(signal.SIGTERM)
        output, errors = dev.communicate(timeout=30)
    assert output == ""
    assert key not in errors


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "api_key: found nothing"),
        ({"HETEROFLEET_API_KEY": "short"}, "api_key: found a key of 5 characters"),
        ({"HETEROFLEET_API_KEY": "changemechangeme"}, "api_key: found a known default"),
        ({"HETEROFLEET_API_KEY": KEY, "HETEROFLEET_THREADS": "0"}, "threads: found 0"),
        ({"HETEROFLEET_API_KEY": KEY, "HETEROFLEET_LISTEN": "here"}, "listen: found 'here'"),
        ({"HETEROFLEET_API_KEY": KEY, "HETEROFLEET_DATABASE_URL": "mysql://h/d"}, "database_url: found mysql"),
        ({"HETEROFLEET_API_KEY_FILE": "/nonexistent/key"}, "api_key_file: found"),
    ],
)
def test_wrong_settings_are_78(tmp_path: Path, variables: dict[str, str], said: str) -> None:
    ended = server("run", "--state-dir", str(tmp_path / "state"), **variables)
    assert ended.returncode == 78
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [("thread: 4\n", "the nearest is threads"), ("a: [\n", "YAML"), ("- list\n", "a mapping of settings")],
)
def test_a_wrong_file_is_78(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(text)
    ended = server("run", "--config", str(file), HETEROFLEET_API_KEY=KEY)
    assert ended.returncode == 78
    assert said in ended.stderr


def test_a_port_in_use_is_69(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        listen = f"127.0.0.1:{holder.getsockname()[1]}"
        for name in ("--listen", "--doorbell-listen"):
            other = "--doorbell-listen" if name == "--listen" else "--listen"
            ended = server(
                *("run", "--state-dir", str(tmp_path), name, listen, other, f"127.0.0.1:{free_port()}"),
                HETEROFLEET_API_KEY=KEY,
            )
            assert ended.returncode == 69
            assert f"The address {listen} cannot be listened on (Address already in use)" in ended.stderr
            assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("what", ["folder", "file"])
def test_state_that_cannot_be_written_is_73(tmp_path: Path, what: str) -> None:
    blocked = tmp_path / "blocked"
    if what == "folder":
        blocked.write_text("a file where a folder should be")
    else:
        (blocked / "heterofleet.db").mkdir(parents=True)
    ended = server(
        *("run", "--state-dir", str(blocked), "--listen", f"127.0.0.1:{free_port()}", "--doorbell-listen", ""),
        HETEROFLEET_API_KEY=KEY,
    )
    assert ended.returncode == 73
    assert "cannot be" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_database_server_that_is_away_is_69(tmp_path: Path) -> None:
    ended = server(
        *("migrate", "--state-dir", str(tmp_path)),
        HETEROFLEET_DATABASE_URL="postgresql://someone:hushhush@127.0.0.1:9/none?connect_timeout=2",
    )
    assert ended.returncode == 69
    assert "does not take the connection" in ended.stderr
    assert "hushhush" not in ended.stderr


def test_a_newer_database_is_78(tmp_path: Path) -> None:
    assert server("migrate", "--state-dir", str(tmp_path)).returncode == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "heterofleet.db")) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
        database.execute("UPDATE control_plane SET release = '9.4.0'")
        database.commit()
    ended = server("migrate", "--state-dir", str(tmp_path))
    assert ended.returncode == 78
    assert "release 9.4.0 or a later one" in ended.stderr


def test_config_shows_origins_and_hides_secrets(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("threads: 4\nwritten_for: 99.0.0\nfrom_the_future: 1\n")
    ended = server("config", "-o", "json", "--config", str(file), "--mode", "production", HETEROFLEET_API_KEY=KEY)
    assert ended.returncode == 0
    shown = json.loads(ended.stdout)
    assert shown["threads"] == {"value": 4, "origin": str(file)}
    assert shown["mode"] == {"value": "production", "origin": "command line"}
    assert shown["api_key"] == {"value": "********", "origin": "HETEROFLEET_API_KEY"}
    assert shown["mps_max"] == {"value": 4, "origin": "default"}
    assert KEY not in ended.stdout + ended.stderr
    assert "from_the_future" in ended.stderr
    assert server("config", "--config", str(file)).returncode == 78, "the server would not start with these"
    table = server("config", "--config", str(file), HETEROFLEET_API_KEY=KEY)
    assert "heartbeat_interval_s" in table.stdout
    folder = "/srv/" + "/".join(["a-folder-with-a-long-name"] * 5)
    piped = server("config", "--state-dir", folder, COLUMNS="80", HETEROFLEET_API_KEY=KEY)
    assert any(f'"{folder}"' in line and "state_dir" in line for line in piped.stdout.splitlines()), "told whole"


def test_a_folder_of_settings_that_is_closed_to_this_user_is_78(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "stat", denied)
    monkeypatch.setattr(Path, "read_text", denied)
    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(SettingsError, match=r"server\.yaml: found Permission denied"):
        load(None, environ={"HETEROFLEET_API_KEY": KEY})


def test_tokens_are_made_listed_and_revoked(tmp_path: Path) -> None:
    at = ("--state-dir", str(tmp_path))
    made = server("token", "create", "--name", "ops", "--role", "admin", *at)
    token = made.stdout.strip()
    assert (made.returncode, len(made.stdout.splitlines())) == (0, 1)
    again = server("token", "create", "--name", "ops", "--role", "viewer", *at)
    assert again.returncode == 1
    assert "There is a token named 'ops'" in again.stderr
    listed = server("token", "list", "-o", "json", *at)
    assert [(entry["name"], entry["role"]) for entry in json.loads(listed.stdout)["tokens"]] == [("ops", "admin")]
    assert token not in listed.stdout
    with process(tmp_path) as (_, port):
        login = {"Authorization": f"Bearer {token}"}
        assert request(port, "GET", "/api/v1/nodes", **login)[0] == 200
        # A running server takes the word of the command at once.
        assert server("token", "revoke", "ops", *at).returncode == 0
        assert request(port, "GET", "/api/v1/nodes", **login)[0] == 401
    assert server("token", "revoke", "ops", *at).returncode == 1


def test_usage_is_2() -> None:
    assert server("token", "create", "--name", "x").returncode == 2
    assert server("nonsense").returncode == 2


def test_any_wsgi_server_can_serve_the_application(tmp_path: Path) -> None:
    """``create_app(settings)`` is a whole control plane: here behind the standard library's server."""
    program = f"""
import json, threading, urllib.request
from wsgiref.simple_server import make_server
from runtime.server.app import create_app
from runtime.server.settings import ServerSettings
app = create_app(ServerSettings(mode="dev", listen="127.0.0.1:0", doorbell_listen="", state_dir={str(tmp_path)!r}))
server = make_server("127.0.0.1", 0, app)
threading.Thread(target=server.serve_forever, daemon=True).start()
with urllib.request.urlopen(f"http://127.0.0.1:{{server.server_port}}/readyz") as answer:
    print(json.load(answer)["status"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "ready"), done.stderr
