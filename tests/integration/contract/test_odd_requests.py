"""Requests that no client library makes: sent byte by byte, each answered by the right problem and never by a 500."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from runtime.protocol.problems import MEDIA_TYPE
from tests.integration.contract.live import Live, control_plane

TASKS = "/api/v1/tasks"
DEEP = b"[" * 100_000 + b"]" * 100_000
HUGE = b"9" * 5000


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with control_plane("contract-odd", max_body_mib=1) as plane:
        yield Live(plane)


def raw(live: Live, data: bytes) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body) of what comes back for these very bytes."""
    host = urlsplit(live.url)
    with socket.create_connection((host.hostname, host.port), timeout=20) as connection:
        try:
            connection.sendall(data)
        except OSError:
            pass  # it may have answered and hung up before it read all
        received = b""
        while True:
            try:
                piece = connection.recv(65536)
            except ConnectionResetError:
                break
            if not piece:
                break
            received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    status = int(lines[0].split()[1]) if lines[0] else 0
    headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines[1:]}
    return status, headers, body


def request(live: Live, method: bytes, target: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    lines = [method + b" " + target + b" HTTP/1.1", b"Host: x", b"Connection: close", *headers]
    lines.append(b"Authorization: Bearer " + live.token().encode())
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def post(live: Live, body: bytes, *headers: bytes, target: bytes = TASKS.encode()) -> bytes:
    given = headers or (b"Content-Type: application/json",)
    return request(live, b"POST", target, *given, b"Content-Length: %d" % len(body), body=body)


def chunked(live: Live, *pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + end
    return request(
        live, b"POST", TASKS.encode(), b"Content-Type: application/json", b"Transfer-Encoding: chunked", body=body
    )


CASES = {
    # what: (bytes, status, code)
    "a NUL in the path": (lambda live: request(live, b"GET", b"/api/v1/tasks/a%00b"), 404, "task_not_found"),
    "a NUL in the query": (lambda live: request(live, b"GET", b"/api/v1/tasks?node_id=a%00b"), 400, "bad_parameter"),
    "a NUL in the cursor": (lambda live: request(live, b"GET", b"/api/v1/tasks?cursor=%00"), 400, "bad_parameter"),
    "percent without digits": (lambda live: request(live, b"GET", b"/api/v1/tasks/%zz"), 404, "task_not_found"),
    "bytes that are not UTF-8": (lambda live: request(live, b"GET", b"/api/v1/tasks/%ff%fe"), 404, "task_not_found"),
    "not UTF-8 in the query": (lambda live: request(live, b"GET", b"/api/v1/tasks?kind=%ff"), 400, "bad_parameter"),
    "half a surrogate in the path": (
        lambda live: request(live, b"GET", b"/api/v1/tasks/%ed%a0%80"),
        404,
        "task_not_found",
    ),
    "half a surrogate for a card": (
        lambda live: request(live, b"GET", b"/api/v1/gpus/%ed%a0%80"),
        404,
        "gpu_not_found",
    ),
    "a slash in an id": (lambda live: request(live, b"GET", b"/api/v1/tasks/a%2Fb"), 404, "route_not_found"),
    "two slashes": (lambda live: request(live, b"GET", b"/api//v1/tasks"), 404, "route_not_found"),
    "an endless number": (lambda live: request(live, b"GET", b"/api/v1/tasks?limit=" + HUGE), 400, "bad_parameter"),
    "a number in other digits": (
        lambda live: request(live, b"GET", b"/api/v1/tasks?limit=%D9%A3"),
        400,
        "bad_parameter",
    ),
    "a parameter twice": (lambda live: request(live, b"GET", b"/api/v1/tasks?limit=0&limit=5"), 400, "bad_parameter"),
    "a status list with a hole": (
        lambda live: request(live, b"GET", b"/api/v1/tasks?status=running,,failed"),
        400,
        "bad_parameter",
    ),
    "an event id above 64 bits": (
        lambda live: request(live, b"GET", b"/api/v1/events?after=99999999999999999999"),
        400,
        "bad_parameter",
    ),
    "an empty body": (lambda live: post(live, b""), 400, "malformed_json"),
    "no JSON": (lambda live: post(live, b"name=a"), 400, "malformed_json"),
    "JSON in UTF-16": (lambda live: post(live, '{"name":"a"}'.encode("utf-16")), 400, "malformed_json"),
    "bytes that are no text": (lambda live: post(live, b'{"name":"\xff"}'), 400, "malformed_json"),
    "half a surrogate": (lambda live: post(live, b'{"name":"\\ud800","image":"a"}'), 400, "malformed_json"),
    "a NUL in a text": (lambda live: post(live, b'{"name":"a\\u0000b","image":"a"}'), 422, "invalid_task"),
    "100,000 brackets": (lambda live: post(live, DEEP), 400, "malformed_json"),
    "100,000 brackets in a member": (lambda live: post(live, b'{"profile":' + DEEP + b"}"), 400, "malformed_json"),
    "a number of 5,000 digits": (
        lambda live: post(live, b'{"name":"a","image":"a","priority":' + HUGE + b"}"),
        400,
        "malformed_json",
    ),
    "a number of 5,000 digits where anything goes": (
        lambda live: post(live, b'{"name":"a","image":"a:1","profile":{"n":' + HUGE + b"}}"),
        400,
        "malformed_json",
    ),
    "not a number": (lambda live: post(live, b'{"name":"a","image":"a","cpus":NaN}'), 422, "invalid_task"),
    "a list for a body": (lambda live: post(live, b"[]"), 422, "invalid_task"),
    "null for a body": (lambda live: post(live, b"null"), 422, "invalid_task"),
    "two bodies": (lambda live: post(live, b"{}{}"), 400, "malformed_json"),
    "no content type": (lambda live: post(live, b"{}", b"X-Nothing: 1"), 415, "unsupported_media_type"),
    "a form": (
        lambda live: post(live, b"{}", b"Content-Type: multipart/form-data; boundary=x"),
        415,
        "unsupported_media_type",
    ),
    "a content type that is none": (
        lambda live: post(live, b"{}", b"Content-Type: ;;;"),
        415,
        "unsupported_media_type",
    ),
    "chunks": (lambda live: chunked(live, b'{"nam', b'e":"a"}'), 422, "invalid_task"),
    "chunks over the limit": (lambda live: chunked(live, *[b"a" * 65536] * 24), 413, "body_too_large"),
    "chunks far over the limit": (lambda live: chunked(live, *[b"a" * 65536] * 80), 413, "body_too_large"),
    "chunks whose size is no number": (
        lambda live: chunked(live, end=b"zz\r\nabc\r\n0\r\n\r\n"),
        400,
        "bad_parameter",
    ),
    "a length over the limit": (lambda live: post(live, b"a" * (3 << 19)), 413, "body_too_large"),
    "a length far over the limit": (lambda live: post(live, b"a" * (4 << 20)), 413, "body_too_large"),
    "a length that is no number": (
        lambda live: request(live, b"POST", TASKS.encode(), b"Content-Type: application/json", b"Content-Length: many"),
        400,
        "bad_parameter",
    ),
    "two lengths": (
        lambda live: request(
            live,
            b"POST",
            TASKS.encode(),
            b"Content-Type: application/json",
            b"Content-Length: 2",
            b"Content-Length: 3",
            body=b"{}",
        ),
        400,
        "bad_parameter",
    ),
    "headers without end": (
        lambda live: request(live, b"GET", TASKS.encode(), b"X-Long: " + b"a" * 300_000),
        431,
        "bad_parameter",
    ),
    "no HTTP at all": (lambda live: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "bad_parameter"),
}


@pytest.mark.parametrize("what", CASES)
def test_an_odd_request(live: Live, what: str) -> None:
    make, status, code = CASES[what]
    answered, headers, body = raw(live, make(live))
    assert answered == status, body[:500]
    assert headers["content-type"] == MEDIA_TYPE
    document = json.loads(body)
    assert (document["code"], document["status"]) == (code, status)
    assert headers["x-control-plane-id"] == document["control_plane_id"]
    assert headers["x-revision"].isdigit()
    assert live.operator("GET", "/readyz").status == 200
    assert re.findall(r"(?m)^.*(?:Traceback| failed$).*$", live.plane.log.read_text()) == []
