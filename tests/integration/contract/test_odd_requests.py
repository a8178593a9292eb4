"""Requests that no client library makes: sent byte by byte, each answered by the right problem and never by a 500."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from runtime.protocol.problems import MEDIA_TYPE
from runtime.server.store import tables
from tests.integration.contract.live import Live, control_plane
from tests.integration.postgres import cluster
from tests.lab.process import wait_for
from tests.lab.simulated_node import SimulatedNode

TASKS = "/api/v1/tasks"
DEEP = b"[" * 100_000 + b"]" * 100_000
HUGE = b"9" * 5000


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def live(request: pytest.FixtureRequest) -> Iterator[Live]:
    with contextlib.ExitStack() as stack:
        settings = {}
        if request.param == "postgresql":
            settings["database_url"] = stack.enter_context(stack.enter_context(cluster()).database())
        yield Live(stack.enter_context(control_plane("contract-odd", max_body_mib=1, **settings)))


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


NUL = "a\x00b"


def running(live: Live) -> tuple[SimulatedNode, str, dict[str, object]]:
    """A claimed task: its node, its id, and what every report of it carries."""
    name = f"odd-{uuid.uuid4().hex[:12]}"
    node = live.node(name)
    live.create(name, node_id=name)
    wait_for("the task is scheduled", lambda: bool(node.scheduled()), 40)
    token, (status, body) = node.claim(name, 1)
    assert status == 200, body
    return node, name, {"attempt": 1, "claim_token": token}


def test_what_a_program_wrote_is_taken_whatever_it_is(live: Live) -> None:
    """A NUL in an error, a log or a path is a program's business; no database may make an agent's report fail."""
    node, task, claim = running(live)
    found = {"found": True, "path": NUL, "framework": NUL, "step": 1, "rejected": [{"path": NUL, "reason": NUL}]}
    assert live.agent(node, "POST", f"{TASKS}/{task}/checkpoint-resume", {**claim, **found}).status == 204
    chunk = {"from": 0, "to": 3, "data": NUL, "dropped": 0}
    assert live.agent(node, "POST", f"{TASKS}/{task}/logs", {**claim, **chunk}).status == 204
    end = {"node_id": node.node_id, "from_status": "running", "status": "failed", "exit_code": 1, "reason": "exited"}
    told = live.agent(node, "PUT", f"{TASKS}/{task}", {**claim, **end, "error": NUL, "log_tail": NUL})
    assert told.status == 200, told.raw
    read = live.operator("GET", f"{TASKS}/{task}").body
    assert (read["status"], read["error"].replace(NUL[1], "\N{REPLACEMENT CHARACTER}")) == (
        "failed",
        "a\N{REPLACEMENT CHARACTER}b",
    )


def stored(live: Live, node_id: str) -> dict[str, Any]:
    """What the database holds of a node's last beat."""
    url = str(live.plane.settings.get("database_url") or f"sqlite:///{live.plane.state_dir / 'heterofleet.db'}")
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool)
    with engine.connect() as connection:
        facts = connection.execute(sa.select(tables.nodes.c.facts).where(tables.nodes.c.id == node_id)).scalar()
    return dict(facts or {})


def test_a_machine_may_call_itself_anything(live: Live) -> None:
    node, _, _ = running(live)
    odd = "\N{GRINNING FACE}" * 40 + NUL
    status, body = node.beat(host={"hostname": odd, "cpu_cores": 8, "memory_total_mib": 1000}, images=[NUL], fabrics=[])
    assert status == 200, body
    wait_for("what was heard is stored", lambda: stored(live, node.node_id).get("host", {}).get("hostname") == odd, 40)
    assert live.operator("GET", f"/api/v1/nodes/{node.node_id}").status == 200


@pytest.mark.parametrize("number", [2**31, 2**53, 2**63, 10**400], ids=["2^31", "2^53", "2^63", "10^400"])
def test_an_attempt_that_no_database_stores(live: Live, number: int) -> None:
    node, task, claim = running(live)
    for method, path, more in (
        ("POST", f"{TASKS}/{task}/logs", {"from": 0, "to": 0, "data": "", "dropped": 0}),
        ("POST", f"{TASKS}/{task}/checkpoint-resume", {"found": False}),
        ("POST", f"{TASKS}/{task}/reclaim", {"node_id": node.node_id, "instance_id": node.instance_id}),
        ("PUT", f"{TASKS}/{task}", {"node_id": node.node_id, "from_status": "running", "status": "completed"}),
    ):
        answer = live.agent(node, method, path, {**claim, **more, "attempt": number})
        assert answer.code in ("invalid_task", "malformed_json"), answer.raw
    assert live.operator("GET", f"{TASKS}/{task}").body["status"] == "running"
