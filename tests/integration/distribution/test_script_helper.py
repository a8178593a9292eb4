"""What the scripts fetch and ask, against servers that answer wrongly: nothing wrong is ever put in place."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from runtime.artifacts.scripts import templates_folder

HELPER = (templates_folder() / "_helper.py").read_text()
PROGRAM = b"#!/bin/sh\nexit 0\n" + b"x" * 100000
SHA256 = hashlib.sha256(PROGRAM).hexdigest()
PAGE = b"<html><body>Please sign in</body></html>"
MANIFEST = {
    "version": "1.2.3",
    "commit": "abc",
    "built_at": "2026-01-01T00:00:00Z",
    "dirty": False,
    "protocol": 1,
    "builds": {"amd64": {"file": "f", "size": len(PROGRAM), "md5": "0" * 32, "sha256": SHA256}},
}
PREFLIGHT = {"control_plane_id": "11111111-2222-3333-4444-555555555555", "protocol": 1}


class Server(ThreadingHTTPServer):
    """Answers each path as its test says: (status, headers, body sent, Content-Length)."""

    daemon_threads = True
    answers: dict[str, tuple[int, dict[str, str], bytes, int | None]]
    seen: list[tuple[str, dict[str, str]]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def says(self, path: str, status: int, body: bytes, length: int | None = None, **headers: str) -> None:
        self.answers[path] = (status, headers, body, length)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        server.seen.append((self.path, dict(self.headers)))
        status, headers, body, length = server.answers.get(self.path.partition("?")[0], (404, {}, PAGE, None))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.answers, made.seen = {}, []
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def helper(*words: str, key: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-Ic", HELPER, *words], input=key, capture_output=True, text=True, timeout=60, env={}
    )


def download(server: Server, target: Path) -> subprocess.CompletedProcess[str]:
    return helper("download", f"{server.url}/static/agent?arch=amd64", "", str(target), str(len(PROGRAM)), SHA256)


def test_a_good_download_is_executable(server: Server, tmp_path: Path) -> None:
    server.says("/static/agent", 200, PROGRAM)
    done = download(server, tmp_path / "agent.new")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "agent.new").read_bytes() == PROGRAM
    assert (tmp_path / "agent.new").stat().st_mode & 0o7777 == 0o755
    assert server.seen[0][0] == "/static/agent?arch=amd64"


@pytest.mark.case("FC-056")
@pytest.mark.parametrize(
    ("status", "body", "length", "headers", "words"),
    [
        (404, PAGE, None, {}, "HTTP status 404"),
        (302, b"", None, {"Location": "http://elsewhere.example/login"}, "redirects to http://elsewhere.example/login"),
        (200, PAGE, None, {"Content-Type": "text/html"}, "40 bytes of type text/html"),
        (200, b"", None, {}, "HTTP status 200 and 0 bytes"),
        (200, PROGRAM[:5000], len(PROGRAM), {}, "HTTP status 200 and 5000 bytes"),
        (200, PROGRAM + b"x", None, {}, "more than"),
        (200, PROGRAM[:-1] + b"y", None, {}, "wanted 100017 bytes, sha256 " + SHA256),
        (503, b"{}", None, {}, "HTTP status 503"),
    ],
    ids=["404", "302", "a page", "nothing", "cut short", "too long", "a flipped byte", "503"],
)
def test_an_answer_that_is_not_the_program_is_not_kept(
    server: Server, tmp_path: Path, status: int, body: bytes, length: int | None, headers: dict[str, str], words: str
) -> None:
    """An error page with status 200, a redirect or half a file was stored as the program, and made executable."""
    server.says("/static/agent", status, body, length, **headers)
    done = download(server, tmp_path / "agent.new")
    assert (done.returncode, done.stdout) == (6, "")
    assert words in done.stderr and f"{server.url}/static/agent?arch=amd64" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_may_pass_is_tried_again(server: Server, tmp_path: Path) -> None:
    server.says("/static/agent", 200, PROGRAM[:5000], len(PROGRAM))
    assert download(server, tmp_path / "agent.new").returncode == 6
    assert len(server.seen) == 3
    server.seen.clear()
    server.says("/static/agent", 404, PAGE)
    assert download(server, tmp_path / "agent.new").returncode == 6
    assert len(server.seen) == 1


def test_preflight_sends_the_key_and_prints_the_control_plane(server: Server) -> None:
    server.says("/api/v1/agent/preflight", 200, json.dumps(PREFLIGHT).encode())
    done = helper("preflight", server.url, "", key="s3cret-key-0123456")
    assert (done.returncode, done.stdout.strip()) == (0, PREFLIGHT["control_plane_id"])
    assert {name.lower(): value for name, value in server.seen[0][1].items()}["x-api-key"] == "s3cret-key-0123456"


@pytest.mark.parametrize(
    ("status", "body", "headers", "code", "words"),
    [
        (401, b'{"detail": "no"}', {}, 3, "refuses the key (HTTP status 401)"),
        (503, b'{"detail": "The control plane is starting."}', {}, 4, "503: The control plane is starting."),
        (500, PAGE, {}, 4, "not as a HeteroFleet control plane answers"),
        (404, PAGE, {}, 4, "HTTP status 404"),
        (200, PAGE, {}, 4, "not as a HeteroFleet control plane answers"),
        (200, b"[]", {}, 4, "not as a HeteroFleet control plane answers"),
        (307, b"", {"Location": "https://new.example/api"}, 4, "redirects to https://new.example/api"),
    ],
)
def test_preflight_says_what_is_wrong(
    server: Server, status: int, body: bytes, headers: dict[str, str], code: int, words: str
) -> None:
    server.says("/api/v1/agent/preflight", status, body, **headers)
    done = helper("preflight", server.url, "", key="s3cret-key-0123456")
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "s3cret" not in done.stderr
    # One question, and never to where a redirect points.
    assert len(server.seen) == 1


def test_nothing_there_is_unreachable() -> None:
    done = helper("preflight", "http://127.0.0.1:9", "", key="s3cret-key-0123456")
    assert done.returncode == 4
    assert "cannot reach http://127.0.0.1:9: " in done.stderr


def test_manifest_gives_version_release_file_size_and_sha256(server: Server) -> None:
    server.says("/static/agent/manifest.json", 200, json.dumps(MANIFEST).encode())
    for wanted in ("", "1.2.3", "1.2.3-abc"):
        done = helper("manifest", server.url, "", "amd64", wanted)
        assert done.stdout.split() == ["1.2.3", f"1.2.3-abc-{SHA256[:8]}", "f", str(len(PROGRAM)), SHA256]


@pytest.mark.parametrize(
    ("changes", "wanted", "arch", "words"),
    [
        ({}, "1.2.4", "amd64", "hands out 1.2.3-abc"),
        ({}, "", "arm64", "no build for arm64"),
        ({"version": "../../etc"}, "", "amd64", "not a list of builds"),
        ({"commit": "$(reboot)"}, "", "amd64", "not a list of builds"),
        ({"builds": {"amd64": {"size": 5, "sha256": "zz"}}}, "", "amd64", "not a list of builds"),
        ({"builds": {"amd64": {"size": 5, "sha256": "0" * 64, "file": "../f"}}}, "", "amd64", "not a list of builds"),
        ({"builds": None}, "", "amd64", "not a list of builds"),
    ],
)
def test_a_manifest_that_cannot_be_used(
    server: Server, changes: dict[str, object], wanted: str, arch: str, words: str
) -> None:
    server.says("/static/agent/manifest.json", 200, json.dumps({**MANIFEST, **changes}).encode())
    done = helper("manifest", server.url, "", arch, wanted)
    assert (done.returncode, done.stdout) == (6, "")
    assert words in done.stderr
