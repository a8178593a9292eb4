"""What a request may say about who it is for, and how much it may say at all."""

from __future__ import annotations

import json
import socket
import string
from collections.abc import Iterator

import pytest

from runtime.artifacts.scripts import SCRIPTS
from tests.integration.server_core.plane import FULL, KEY, Agent, Plane, running

FINE = set(string.ascii_letters + string.digits + ".:[]-")
HEARTBEAT = "/api/v1/agent/heartbeat"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running(tmp_path_factory.mktemp("plane"), doorbell_listen="127.0.0.1:1") as made:
        assert Agent(made).beat(**FULL).status == 200
        yield made


def exchange(plane: Plane, raw: bytes) -> tuple[int, bytes]:
    """Status and body of whatever is sent; 0 when the connection was closed without an answer."""
    with socket.create_connection(("127.0.0.1", plane.port), timeout=20) as connection:
        received = bytearray()
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the server has said enough and closed
        try:
            while part := connection.recv(65536):
                received.extend(part)
        except OSError:
            pass
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


def script(plane: Plane, host: bytes, *more: bytes, target: bytes = b"/install-agent.sh") -> tuple[int, bytes]:
    lines = [b"GET " + target + b" HTTP/1.1", b"Host: " + host, b"Connection: close", *more, b"", b""]
    return exchange(plane, b"\r\n".join(lines))


def test_only_plain_hosts_reach_a_script(plane: Plane) -> None:
    """A Host header stands in a script that root runs: what a shell could take otherwise is refused."""
    wrong = {}
    for code in [9, *range(32, 256)]:
        character = bytes([code])
        status, body = script(plane, b"cp" + character + b"example")
        fine = chr(code) in FINE
        if fine != (status == 200) or (not fine and b"cp" + character + b"example" in body and status == 200):
            wrong[character] = status
    assert wrong == {}


@pytest.mark.parametrize(
    "host",
    [
        b"$(reboot)",
        b"`reboot`",
        b"a;reboot",
        b"a'b",
        b'a"b',
        b"a\\b",
        b"a/../b",
        b"a%2fb",
        b"a@b",
        b"a#b",
        b"a?b",
        b"{{7*7}}",
        b"a\x00b",
        "ｅxample".encode(),
        b"a" * 256,
        b"a" * 100_000,
    ],
)
@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_takes_an_odd_host(plane: Plane, name: str, host: bytes) -> None:
    target = b"/" + name.encode()
    if script(plane, b"cp.example", target=target)[0] == 404:
        pytest.fail(f"{name} is not served")
    status, body = script(plane, host, target=target)
    assert 400 <= status < 500
    assert b"#!/bin/sh" not in body


@pytest.mark.parametrize(
    "more",
    [
        (b"X-Forwarded-Host: evil.example",),
        (b"X-Forwarded-Proto: https", b"X-Forwarded-Host: evil.example"),
        (b"Forwarded: host=evil.example;proto=https",),
        (b"X-Original-Host: evil.example", b"X-Host: evil.example"),
        (b"Host: evil.example",),
    ],
)
def test_nobody_else_says_who_we_are(plane: Plane, more: tuple[bytes, ...]) -> None:
    """Forwarded headers are believed of trusted proxies only; a second Host makes the request a wrong one."""
    status, body = script(plane, b"cp.example", *more)
    if status == 200:
        assert b"http://cp.example" in body and b"evil.example" not in body
    else:
        assert 400 <= status < 500 and b"#!/bin/sh" not in body


def test_the_doorbells_address_follows_the_same_rule(plane: Plane) -> None:
    agent = Agent(plane)
    agent.seq = 100
    for host, wanted in (
        ("cp.example:3333", "http://cp.example:1/api/v1/agent/doorbell"),
        ("[fd00::1]:3333", "http://[fd00::1]:1/api/v1/agent/doorbell"),
        ("evil.example/x", None),
        ("a@evil.example", None),
        ("a b", None),
    ):
        body = json.dumps(agent.body(**FULL)).encode()
        lines = [f"POST {HEARTBEAT} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in agent.headers.items()]
        lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
        status, answer = exchange(plane, "\r\n".join(lines).encode() + body)
        assert status == 200, answer
        assert json.loads(answer)["doorbell"] == wanted


KEY_LINE = f"X-API-Key: {KEY}".encode()
PREFLIGHT = b"GET /api/v1/agent/preflight HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(PREFLIGHT + b"X-Long: " + b"x" * 1_000_000 + b"\r\n" + KEY_LINE + b"\r\n\r\n", id="a long header"),
        pytest.param(PREFLIGHT + b"X-A: b\r\n" * 100_000 + KEY_LINE + b"\r\n\r\n", id="many headers"),
        pytest.param(b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", id="a long path"),
        pytest.param(PREFLIGHT + b"X-API-Key: " + b"k" * 200_000 + b"\r\n\r\n", id="a long key"),
        pytest.param(PREFLIGHT + b"Authorization: Bearer " + b"t" * 200_000 + b"\r\n\r\n", id="a long token"),
        pytest.param(PREFLIGHT + b"Content-Length: -1\r\n\r\n", id="a negative length"),
        pytest.param(PREFLIGHT + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", id="two lengths"),
        pytest.param(
            PREFLIGHT + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            id="a length and chunks",
        ),
        pytest.param(PREFLIGHT + b" folded: yes\r\n\r\n", id="a folded header"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200, id="TLS"),
        pytest.param(b"\x00" * 100_000, id="zeros"),
    ],
)
def test_what_is_too_much_or_no_request_is_refused_and_costs_nothing(plane: Plane, raw: bytes) -> None:
    status, body = exchange(plane, raw)
    assert status == 0 or 400 <= status < 500 or status == 501, body[:300]
    assert KEY.encode() not in body
    assert plane.call("GET", "/api/v1/agent/preflight", headers={"X-API-Key": KEY}).status == 200
