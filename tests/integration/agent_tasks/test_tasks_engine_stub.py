"""The driver against engines that refuse, break off or fall silent: a stub behind a real Unix socket."""

from __future__ import annotations

import json
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.drivers.docker import DockerDriver
from runtime.agent.drivers.errors import (
    EngineRefused,
    EngineUnavailable,
    NotThere,
    PullFailed,
    PullStalled,
    StreamSilent,
)
from runtime.agent.drivers.images import is_for
from runtime.protocol.tasks import RegistryAuth

Answer = Callable[[BaseHTTPRequestHandler], None]
VERSION = {"ApiVersion": "1.41", "MinAPIVersion": "1.12", "Version": "20.10"}


class Stub:
    """``on(method, ending, status, body)`` answers paths that end so; a callable answers by itself."""

    def __init__(self, path: Path) -> None:
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self._rules: list[tuple[str, str, int, Any]] = [("GET", "/version", 200, VERSION)]
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def address_string(self) -> str:
                return "unix"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.partition("?")[0]
                stub.asked.append((self.command, self.path, dict(self.headers.items())))
                for method, ending, status, body in reversed(stub._rules):
                    if method == self.command and path.endswith(ending):
                        if callable(body):
                            body(self)
                            self.close_connection = True
                            return
                        data = json.dumps(body).encode()
                        self.send_response(status)
                        self.send_header("Content-Length", str(len(data)))
                        self.end_headers()
                        self.wfile.write(data)
                        return
                self.send_error(404)

            do_GET = do_POST = do_DELETE = do_HEAD = answer

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

            def get_request(self) -> tuple[socket.socket, Any]:
                connection, _ = super().get_request()
                return connection, ("unix", 0)

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Clients that hang up are what some tests are about."""

        self._server = Server(str(path), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.driver = DockerDriver(f"unix://{path}")

    def on(self, method: str, ending: str, status: int, body: Any) -> None:
        self._rules.append((method, ending, status, body))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    stub = Stub(tmp_path / "engine.sock")
    yield stub
    stub.close()


def chunks(*pieces: bytes, then: Callable[[BaseHTTPRequestHandler], None] = lambda handler: None) -> Answer:
    """An answer in chunks, one per piece, and what happens after the last."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.send_header("Connection", "close")  # else the next request may meet this one's end
        handler.end_headers()
        for piece in pieces:
            handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            handler.wfile.flush()
        then(handler)
        if then is not hang:
            handler.wfile.write(b"0\r\n\r\n")

    return answer


def hang(handler: BaseHTTPRequestHandler) -> None:
    handler.rfile.read(1)


@pytest.mark.case("FC-019")
def test_an_engine_that_wants_another_version_is_away(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer Docker refused old clients, some only because a variable pinned their version."""
    monkeypatch.setenv("DOCKER_API_VERSION", "1.24")
    text = "client version 1.41 is too old. Minimum supported API version is 1.44"
    stub.on("GET", "/containers/json", 400, {"message": text})
    with pytest.raises(EngineUnavailable, match="too old"):
        stub.driver.list_own()
    assert not any("/v1.24/" in path for _, path, _ in stub.asked)
    stub.on("GET", "/version", 200, {**VERSION, "ApiVersion": "1.44", "MinAPIVersion": "1.44"})
    stub.on("GET", "/containers/json", 200, [])
    assert stub.driver.list_own() == []
    assert stub.asked[-1][1].startswith("/v1.44/")


def test_an_engine_that_goes_down_says_nothing(stub: Stub) -> None:
    """A Docker that was restarted ended the programs, and answered over its old connections meanwhile: their ends
    were called the programs' own, and nothing was started again. No connection is kept: each answer is a proof."""
    stub.on("GET", "/containers/json", 200, [])
    stub.on("GET", "/networks/bridge", 200, {"Created": "2026-01-02T03:04:05Z"})
    assert stub.driver.list_own() == []
    assert stub.driver.started_at() == "2026-01-02T03:04:05Z"
    stub.close()  # what is connected would still be served
    with pytest.raises(EngineUnavailable):
        stub.driver.list_own()
    with pytest.raises(EngineUnavailable):
        stub.driver.started_at()


def test_errors_have_kinds(stub: Stub, tmp_path: Path) -> None:
    stub.on("GET", "/containers/a/json", 404, {"message": "No such container: a"})
    stub.on("POST", "/containers/b/start", 500, {"message": "driver failed: port is already allocated"})
    stub.on("GET", "/containers/c/json", 503, {"message": "shutting down"})
    with pytest.raises(NotThere, match="No such container"):
        stub.driver.inspect("a")
    with pytest.raises(EngineRefused, match="already allocated"):
        stub.driver.start("b")
    with pytest.raises(EngineUnavailable, match="shutting down"):
        stub.driver.inspect("c")
    words = "Error while dialing dial unix /run/containerd/containerd.sock: connect: connection refused: unavailable"
    stub.on("POST", "/containers/d/start", 500, {"message": words})
    with pytest.raises(EngineUnavailable, match="containerd"):
        stub.driver.start("d")
    with pytest.raises(EngineUnavailable, match="does not answer"):
        DockerDriver(f"unix://{tmp_path}/nothing.sock").list_own()


def test_a_signal_to_nobody_is_said(stub: Stub) -> None:
    stub.on("POST", "/containers/a/kill", 409, {"message": "Container a is not running"})
    stub.on("POST", "/containers/b/kill", 204, lambda handler: (handler.send_response(204), handler.end_headers()))
    assert stub.driver.signal("a", "SIGTERM") is False
    assert stub.driver.signal("b", "SIGTERM") is True


def test_a_silent_call_ends(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.agent.drivers.docker.LIST_S", 0.3)
    stub.on("GET", "/containers/json", 200, hang)
    began = time.monotonic()
    with pytest.raises(EngineUnavailable):
        stub.driver.list_own()
    assert time.monotonic() - began < 30


def test_log_frames_torn_anywhere(stub: Stub) -> None:
    stamped = (b"2026-11-30T01:02:38.862400313Z first\n", b"2026-11-30T01:02:38.862400314Z second\n")
    frames = b"".join(struct.pack(">BxxxL", number + 1, len(text)) + text for number, text in enumerate(stamped))
    stub.on("GET", "/logs", 200, chunks(*(bytes([byte]) for byte in frames)))
    rest = stub.driver.log_rest("a", 65536)
    assert (rest.data, rest.size, rest.whole) == (b"first\nsecond\n", 13, True)
    assert (stub.driver.log_rest("a", 4).data, stub.driver.log_rest("a", 4).size) == (b"ond\n", 13)
    pieces = list(stub.driver.log_follow("a", "1 2026-11-30T01:02:38.862400313Z 1 2", lambda close: None))
    assert [piece.data for piece in pieces] == [b"rst\n", b"second\n"]
    assert pieces[-1].mark(7) == rest.mark


def test_a_stream_that_breaks_is_not_one_that_is_silent(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    event = json.dumps({"Actor": {"Attributes": {"heterofleet.uid": "u-1"}}}).encode() + b"\n"
    stub.on("GET", "/events", 200, chunks(event, b"nonsense\n", event[:9], event[9:]))
    assert list(stub.driver.events(lambda close: None)) == ["u-1", "u-1"]
    monkeypatch.setattr("runtime.agent.drivers.docker.EVENTS_SILENCE_S", 0.2)
    stub.on("GET", "/events", 200, chunks(event, then=hang))
    with pytest.raises(StreamSilent):
        list(stub.driver.events(lambda close: None))
    stub.on("GET", "/events", 200, chunks(event, then=lambda handler: handler.connection.shutdown(socket.SHUT_RDWR)))
    with pytest.raises(EngineUnavailable) as caught:
        list(stub.driver.events(lambda close: None))
    assert not isinstance(caught.value, StreamSilent)


def lines(*documents: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\r\n" for document in documents)


def test_a_pull_reports_progress_and_its_error(stub: Stub) -> None:
    stub.on(
        "POST",
        "/images/create",
        200,
        chunks(
            lines({"status": "Pulling from a", "id": "1"}, {"status": "Pulling fs layer", "id": "aa"}),
            lines({"status": "Downloading", "id": "aa", "progressDetail": {"current": 700, "total": 1000}}),
            lines({"status": "Pull complete", "id": "aa"}, {"status": "Downloading", "id": "bb"}),
            lines({"errorDetail": {"message": "x"}, "error": "failed to register layer: no space left on device"}),
        ),
    )
    pull = stub.driver.images.pull("reg.local:5000/a:1", None, 60, 60)
    with pytest.raises(PullFailed, match="no space left"):
        pull.run()
    progress = pull.progress()
    assert (progress.layers_done, progress.layers, progress.bytes) == (1, 2, 700)
    assert "fromImage=reg.local%3A5000%2Fa&tag=1" in stub.asked[-1][1]
    assert "X-Registry-Auth" not in stub.asked[-1][2]


@pytest.mark.parametrize("password", ["error", "hunter2hunter2"])
def test_a_pulls_error_is_seen_whatever_the_password_is(stub: Stub, password: str) -> None:
    """The password was masked in the engine's line before it was read, and one that spells a member's name hid it."""
    stub.on("POST", "/images/create", 200, chunks(lines({"error": f"denied: no access with {password}"})))
    pull = stub.driver.images.pull("reg.local:5000/a:1", RegistryAuth("reg.local:5000", "u", password), 60, 60)
    with pytest.raises(PullFailed, match="denied: no access with") as failed:
        pull.run()
    assert password not in f"{failed.value}{pull.tail}"


def test_a_pull_that_repeats_itself_makes_no_progress(stub: Stub) -> None:
    ended = threading.Event()

    def repeat(handler: BaseHTTPRequestHandler) -> None:
        line = lines({"status": "Retrying in 1 second", "id": "aa"})
        try:
            while not ended.wait(0.02):
                handler.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                handler.wfile.flush()
        except OSError:
            ended.set()

    stub.on("POST", "/images/create", 200, chunks(then=repeat))
    pull = stub.driver.images.pull("a:1", None, 0.3, 60)
    watcher = threading.Thread(target=lambda: give_up_when_due(pull))
    watcher.start()
    began = time.monotonic()
    with pytest.raises(PullStalled) as caught:
        pull.run()
    assert 0.2 < time.monotonic() - began < 30
    assert any("Retrying" in line for line in caught.value.tail)
    watcher.join(40)
    assert ended.wait(40), "the engine was not told that nobody waits"


def give_up_when_due(pull: Any) -> None:
    while True:
        due = pull.overdue(time.monotonic())
        if due is None:
            pull.give_up()
            return
        threading.Event().wait(max(0.01, due - time.monotonic()))


def test_credentials_go_in_the_header_of_that_call_and_to_their_registry(stub: Stub) -> None:
    stub.on("POST", "/images/create", 200, chunks(lines({"status": "done"})))
    auth = RegistryAuth("reg.local:5000", "u", "hush")
    stub.driver.images.pull("reg.local:5000/a:1", auth, 9, 9).run()
    assert "X-Registry-Auth" in stub.asked[-1][2]
    stub.driver.images.pull("other.local/a:1", auth, 9, 9).run()
    assert "X-Registry-Auth" not in stub.asked[-1][2]
    assert "hush" not in stub.asked[-2][1]


@pytest.mark.parametrize(
    ("server", "image", "result"),
    [
        ("reg.local:5000", "reg.local:5000/a", True),
        ("https://reg.local:5000/v2/", "reg.local:5000/a", True),
        ("reg.local", "reg.local:5000/a", False),
        ("https://index.docker.io/v1/", "team/a", True),
        ("docker.io", "a", True),
        ("evil.example", "a", False),
    ],
)
def test_whose_credentials(server: str, image: str, result: bool) -> None:
    assert is_for(RegistryAuth(server, "u", "p"), image) is result
