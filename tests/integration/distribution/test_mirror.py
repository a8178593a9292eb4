"""The mirror over HTTP: a plain read-only tree. No key, no query, no listing, no way out of its folder."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from runtime.artifacts.publish import ALL_IN_ONE
from runtime.protocol.manifest import read_manifest
from runtime.server.mirror import open_below, own_url
from tests.integration.distribution import mirrors
from tests.integration.distribution.mirrors import Served, fake_builds, until_published, whole

MANIFEST = "/static/agent/manifest.json"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    base = tmp_path_factory.mktemp("mirror")
    (base / "secret.key").write_text("a secret beside the tree")
    with mirrors.mirror(base, fake_builds(base / "builds", "one")) as made:
        until_published(made)
        yield made


def get(served: Served, path: str, method: str = "GET", **headers: str) -> requests.Response:
    return requests.request(method, served.url + path, headers=headers, timeout=30, allow_redirects=False)


def raw(served: Served, request: bytes) -> bytes:
    """What comes back for exactly these bytes, until the mirror closes the connection or 20 s are over."""
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        try:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(65536), b""))
        except ConnectionError:
            return b""


def asked(served: Served, target: str) -> tuple[int, bytes]:
    answer = raw(served, f"GET {target} HTTP/1.0\r\n\r\n".encode("latin-1"))
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]


def paths(served: Served) -> list[str]:
    builds = read_manifest(served.builds).builds.values()
    return [MANIFEST, f"/{ALL_IN_ONE}", *(f"/static/agent/{entry.file}" for entry in builds)]


def test_every_file_comes_whole_with_its_checksums(served: Served) -> None:
    for path in paths(served):
        content = (served.tree / path[1:]).read_bytes()
        answer = get(served, path)
        assert (answer.status_code, answer.content) == (200, content)
        sha256 = hashlib.sha256(content).hexdigest()
        assert answer.headers["ETag"] == f'"{sha256}"'
        assert answer.headers["X-Checksum-Sha256"] == sha256
        assert answer.headers["X-Checksum-Md5"] == hashlib.md5(content).hexdigest()
        assert answer.headers["Content-Length"] == str(len(content))
        assert answer.headers["Accept-Ranges"] == "bytes"
        head = get(served, path, "HEAD")
        assert (head.status_code, head.content) == (200, b"")
        for name in ("Content-Length", "ETag", "X-Checksum-Sha256", "Content-Type"):
            assert head.headers[name] == answer.headers[name]


@pytest.mark.parametrize(
    ("asked", "status", "part"),
    [
        ("bytes=0-9", 206, slice(0, 10)),
        ("bytes=100-", 206, slice(100, None)),
        ("bytes=-7", 206, slice(-7, None)),
        ("bytes=0-99999999", 206, slice(0, None)),
        # What is no single range of bytes is not asked for (RFC 9110).
        ("bytes=9-0", 200, slice(0, None)),
        ("bytes=0-1,4-5", 200, slice(0, None)),
        ("bytes=x", 200, slice(0, None)),
        ("lines=0-1", 200, slice(0, None)),
        ("bytes=99999999-", 416, None),
        ("bytes=-0", 416, None),
    ],
)
def test_ranges(served: Served, asked: str, status: int, part: slice | None) -> None:
    path = paths(served)[-1]
    content = (served.tree / path[1:]).read_bytes()
    answer = get(served, path, Range=asked)
    assert answer.status_code == status
    if part is None:
        assert answer.headers["Content-Range"] == f"bytes */{len(content)}"
        return
    assert answer.content == content[part]
    assert ("Content-Range" in answer.headers) == (status == 206)
    assert answer.headers["X-Checksum-Sha256"] == hashlib.sha256(content).hexdigest()


def test_a_download_that_broke_off_goes_on_only_with_the_same_file(served: Served) -> None:
    path = paths(served)[-1]
    content = (served.tree / path[1:]).read_bytes()
    etag = get(served, path, "HEAD").headers["ETag"]
    on = get(served, path, Range="bytes=10-", **{"If-Range": etag})
    assert (on.status_code, on.content) == (206, content[10:])
    anew = get(served, path, Range="bytes=10-", **{"If-Range": '"another"'})
    assert (anew.status_code, anew.content) == (200, content)


@pytest.mark.parametrize("weak", ["", "W/"])
def test_what_is_there_already_is_not_sent_again(served: Served, weak: str) -> None:
    etag = get(served, MANIFEST, "HEAD").headers["ETag"]
    for value in (weak + etag, f'"x", {weak}{etag}', "*"):
        answer = get(served, MANIFEST, **{"If-None-Match": value})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["ETag"] == etag
    assert get(served, MANIFEST, **{"If-None-Match": '"x"'}).status_code == 200


@pytest.mark.parametrize("query", ["?", "?arch=arm64", "?x=../../secret.key", "?" + "a" * 4000])
def test_a_query_changes_nothing(served: Served, query: str) -> None:
    assert get(served, MANIFEST + query).content == (served.tree / MANIFEST[1:]).read_bytes()


@pytest.mark.parametrize(
    "path", ["/", "/static", "/static/", "/static/agent", "/static/agent/", "/static/agent?arch=amd64"]
)
def test_nothing_is_listed_and_no_architecture_is_guessed(served: Served, path: str) -> None:
    answer = get(served, path)
    assert (answer.status_code, answer.headers["Content-Type"]) == (404, "text/plain; charset=utf-8")
    assert "heterofleet artifacts build" in answer.text
    assert "heterofleet-agent-" not in answer.text


@pytest.mark.parametrize(
    "target",
    [
        "/../secret.key",
        "/static/../../secret.key",
        "/static/agent/../../../secret.key",
        "/%2e%2e/secret.key",
        "/static/%2e%2e/%2e%2e/secret.key",
        "/..%2fsecret.key",
        "/%2e%2e%2fsecret.key",
        "/static/agent/..%2f..%2f..%2fsecret.key",
        "/%252e%252e/secret.key",
        "//etc/passwd",
        "///etc/passwd",
        "/static//agent/manifest.json",
        "/./static/agent/manifest.json",
        "/static/agent/manifest.json/",
        "/static/agent/manifest.json/..",
        "/static/agent/manifest.json%00",
        "/static/agent/manifest.json%00.sh",
        "/..\\secret.key",
        "/%5c..%5csecret.key",
        "/%c0%ae%c0%ae/secret.key",
        "/\xff\xfe",
        "/" + "a" * 5000,
        "/" + "a/" * 2000,
        "secret.key",
        "*",
        "file:///etc/passwd",
        "http://elsewhere/../secret.key",
    ],
)
def test_no_path_leads_out(served: Served, target: str) -> None:
    status, body = asked(served, target)
    assert status in (400, 404)
    assert b"secret beside" not in body
    assert b"root:" not in body
    assert b'"version"' not in body


def test_links_hidden_files_pipes_and_folders_are_not_there(served: Served) -> None:
    folder = served.tree / "static/agent"
    made = {
        "link": lambda path: path.symlink_to("../../../secret.key"),
        "link-inside": lambda path: path.symlink_to("manifest.json"),
        "folder-link": lambda path: path.symlink_to("/etc"),
        ".hidden": lambda path: path.write_text("half written"),
        "pipe": os.mkfifo,
        "folder": lambda path: path.mkdir(),
    }
    try:
        for name, make in made.items():
            make(folder / name)
        for name in (*made, "folder-link/passwd"):
            assert get(served, f"/static/agent/{name}").status_code == 404, name
    finally:
        for name in made:
            path = folder / name
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_a_folder_that_becomes_a_link_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret")
    root = tmp_path / "root"
    (root / "static").mkdir(parents=True)
    (root / "static/secret").write_text("a file of the tree")
    with open_below(root, "/static/secret") or pytest.fail("not there") as opened:
        assert opened.read() == b"a file of the tree"
    (root / "static").rename(root / "before")
    (root / "static").symlink_to(tmp_path)
    assert open_below(root, "/static/secret") is None
    assert open_below(tmp_path / "none", "/static/secret") is None


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "CONNECT"])
def test_it_is_only_read(served: Served, method: str) -> None:
    answer = raw(served, f"{method} {MANIFEST} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    status, allow = int(answer.split()[1]), b"Allow: GET, HEAD" in answer
    assert (status, allow) == (405, True)


def test_it_answers_after_whatever_was_sent(served: Served) -> None:
    odd = [
        b"GET " + MANIFEST.encode() + b" HTTP/1.1\r\nHost: x\r\nX-Big: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(20_000)) + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\r\n\r\n",
    ]
    for request in odd[:5]:
        answer = raw(served, request)
        # Refused, or the connection was closed while we were still talking.
        assert not answer or 400 <= int(answer.split()[1]) < 600, request[:60]
        assert b'"version"' not in answer
    host, port = served.url.removeprefix("http://").split(":")
    for request in odd[5:]:
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(request)
    assert get(served, MANIFEST).status_code == 200


def test_no_key_is_wanted_and_none_is_answered_to(served: Served) -> None:
    plain = get(served, MANIFEST)
    with_key = get(served, MANIFEST, Authorization="Bearer x", **{"X-API-Key": "y"})
    assert (with_key.status_code, with_key.content) == (plain.status_code, plain.content)
    assert "Set-Cookie" not in plain.headers


def test_new_builds_are_published_and_wrong_ones_leave_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("runtime.server.mirror.LOOK_EVERY_S", 0.05)
    monkeypatch.setattr("runtime.server.mirror.RETRY_S", 0.05)
    builds = tmp_path / "builds"
    with mirrors.mirror(tmp_path, builds, public_url="http://fleet.example:3333") as served:
        assert get(served, MANIFEST).status_code == 404
        fake_builds(builds, "one")
        until_published(served)
        first = read_manifest(builds)
        text = get(served, f"/{ALL_IN_ONE}").text
        assert "http://fleet.example:3333" in text
        assert f"http://fleet.example:{served.url.rpartition(':')[2]}" in text
        (builds / "manifest.json").write_text("<html>")
        mirrors.wait(lambda: "is not renewed" in caplog.text and "not JSON" in caplog.text)
        assert get(served, MANIFEST).text == first.text()
        fake_builds(builds, "two")
        until_published(served)
        assert whole(served.tree)
        for entry in first.builds.values():
            # Whoever has the manifest of before still gets its files.
            assert hashlib.sha256(get(served, f"/static/agent/{entry.file}").content).hexdigest() == entry.sha256


@pytest.mark.parametrize(
    ("public_url", "wanted"),
    [
        (None, ""),
        ("http://fleet.example:3333", "http://fleet.example:5173"),
        ("http://fleet.example", "http://fleet.example:5173"),
        ("http://10.0.0.1:3333", "http://10.0.0.1:5173"),
        ("http://[2001:db8::1]:3333", "http://[2001:db8::1]:5173"),
        ("http://[2001:db8::1]", "http://[2001:db8::1]:5173"),
        ("https://fleet.example", ""),
    ],
)
def test_where_the_mirror_is_as_far_as_that_is_known(public_url: str | None, wanted: str) -> None:
    assert own_url(public_url, 5173) == wanted
