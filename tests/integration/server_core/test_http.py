"""What is true of every answer: who may ask, what a refusal looks like, what is never let in."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from runtime.protocol import times
from runtime.server.services import tokens
from tests.integration.server_core.plane import FULL, KEY, Agent, Answer, Plane, running, wait_until

OTHER_KEY = "mN7_qpL2-xRt5vWz"
HEARTBEAT = "/api/v1/agent/heartbeat"
PREFLIGHT = "/api/v1/agent/preflight"


def assert_problem(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.code) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "detail", "code", "control_plane_id"} <= set(answer.body)
    assert answer.body["status"] == status
    assert answer.headers["x-control-plane-id"] == answer.body["control_plane_id"]
    assert answer.headers["x-revision"].isdigit()


def test_preflight_says_who_answers(plane: Plane) -> None:
    answer = plane.call("GET", PREFLIGHT, headers={"X-API-Key": KEY})
    assert answer.status == 200
    assert answer.body["control_plane_id"] == answer.headers["x-control-plane-id"] == plane.parts.db.control_plane_id
    assert (answer.body["protocol"], answer.body["protocol_min"]) == (1, 1)
    assert abs((times.from_wire(answer.body["time"]) - times.now()).total_seconds()) < 30


def test_two_keys_live_during_a_change(tmp_path: Path) -> None:
    with running(tmp_path, api_key_previous=OTHER_KEY) as plane:
        statuses = [plane.call("GET", PREFLIGHT, headers={"X-API-Key": key}).status for key in (KEY, OTHER_KEY)]
        assert statuses == [200, 200]
        assert_problem(plane.call("GET", PREFLIGHT, headers={"X-API-Key": KEY + "x"}), 401, "bad_api_key")


@pytest.mark.case("FC-072")
def test_a_wrong_key_costs_the_server_little_and_tells_nothing(plane: Plane, agent: Agent) -> None:
    """With an outdated key some agents asked ten times a second and nearly took the server down."""
    assert agent.beat(**FULL).status == 200
    statements: list[str] = []
    with_statements(plane, statements)
    bodies = set()
    for key in ("", "wrong", OTHER_KEY, KEY[:-1], KEY + "0"):
        for path, method in ((PREFLIGHT, "GET"), (HEARTBEAT, "POST"), ("/api/v1/agent/pending?node_id=gpu-a", "GET")):
            answer = plane.call(method, path, {} if method == "POST" else None, {**agent.headers, "X-API-Key": key})
            assert_problem(answer, 401, "bad_api_key")
            bodies.add(answer.raw)
    no_key = plane.call("GET", PREFLIGHT)
    assert_problem(no_key, 401, "bad_api_key")
    # One text for missing, short, long and nearly right: nothing to learn from, and nothing looked up.
    assert bodies == {no_key.raw}
    assert [text for text in statements if "tokens" in text or "nodes SET instance" in text] == []
    # The next beat with the right key is answered as if nothing had been.
    assert agent.beat().status == 200


def with_statements(plane: Plane, found: list[str]) -> None:
    import sqlalchemy as sa

    sa.event.listen(plane.parts.db.engine, "before_cursor_execute", lambda *call: found.append(call[2]))


def test_tokens_and_roles(plane: Plane) -> None:
    assert plane.operator("GET", "/api/v1/nodes", role="viewer").status == 200
    refused = plane.operator("POST", "/api/v1/nodes/none/cordon", {"reason": "r"}, role="viewer")
    assert_problem(refused, 403, "role_not_allowed")
    assert_problem(plane.operator("POST", "/api/v1/nodes/none/cordon", {"reason": "r"}), 404, "node_not_found")


@pytest.mark.parametrize("header", ["Bearer nonsense", "Bearer ", "Basic dTpw", "Bearer \u00e9\u00e9"])
def test_a_token_that_is_none(plane: Plane, header: str) -> None:
    answer = plane.call("GET", "/api/v1/nodes", headers={"Authorization": header})
    assert_problem(answer, 401, "bad_token")
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_token_that_is_over_or_revoked(plane: Plane) -> None:
    over = tokens.create(plane.parts.db, "over", "admin", times.from_epoch(0), 1)
    gone = tokens.create(plane.parts.db, "gone", "admin", times.now(), None)
    assert plane.call("GET", "/api/v1/nodes", headers={"Authorization": f"Bearer {gone}"}).status == 200
    assert tokens.revoke(plane.parts.db, "gone")
    for token in (over, gone):
        assert_problem(
            plane.call("GET", "/api/v1/nodes", headers={"Authorization": f"Bearer {token}"}), 401, "bad_token"
        )


def test_tokens_are_not_stored(plane: Plane, tmp_path: Path) -> None:
    token = tokens.create(plane.parts.db, "who", "admin", times.now(), None)
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("heterofleet.db*"))
    assert b"who" in stored
    assert token.encode() not in stored


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/api/v1/nodes"), ("GET", "/api/v1/gpus"), ("GET", "/api/v1/builds"), ("GET", "/metrics")],
)
def test_operators_calls_take_no_system_key(plane: Plane, method: str, path: str) -> None:
    assert_problem(plane.call(method, path, headers={"X-API-Key": KEY}), 403, "agent_key_not_allowed")
    assert_problem(plane.call(method, path, headers={"X-API-Key": "wrong"}), 401, "bad_api_key")
    assert_problem(plane.call(method, path), 401, "bad_token")
    assert plane.operator(method, path, role="viewer").status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", PREFLIGHT), ("POST", HEARTBEAT), ("GET", "/api/v1/agent/pending?node_id=gpu-a")],
)
def test_agents_calls_take_no_token(plane: Plane, method: str, path: str) -> None:
    body = {} if method == "POST" else None
    assert_problem(plane.operator(method, path, body), 403, "operator_token_not_allowed")


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"X-Node-Id": None}, 403, "node_scope_mismatch"),
        ({"X-Node-Id": "gpu-b"}, 403, "node_scope_mismatch"),
        ({"X-Node-Id": "GPU_B"}, 422, "invalid_node_id"),
        ({"X-Instance-Id": None}, 403, "instance_mismatch"),
        ({"X-Instance-Id": "22222222-aaaa"}, 403, "instance_mismatch"),
    ],
)
def test_header_query_and_binding_agree(
    plane: Plane, agent: Agent, headers: dict[str, str | None], status: int, code: str
) -> None:
    assert agent.beat(**FULL).status == 200
    sent = {name: value for name, value in {**agent.headers, **headers}.items() if value is not None}
    assert_problem(plane.call("GET", "/api/v1/agent/pending?node_id=gpu-a", headers=sent), status, code)
    assert_problem(plane.call("POST", HEARTBEAT, agent.body(), sent), status, code)


def test_a_node_that_never_beat_is_nobody(plane: Plane, agent: Agent) -> None:
    answer = plane.call("GET", "/api/v1/agent/pending?node_id=gpu-a", headers=agent.headers)
    assert_problem(answer, 403, "instance_mismatch")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "route_not_found"),
        ("GET", "/api/v1/nowhere", 404, "route_not_found"),
        ("GET", "/api/v1//nodes", 404, "route_not_found"),
        ("GET", "/api/v1/agent/heartbeat%00", 404, "route_not_found"),
        ("DELETE", "/api/v1/nodes", 405, "method_not_allowed"),
        ("PATCH", HEARTBEAT, 405, "method_not_allowed"),
    ],
)
def test_no_such_call(plane: Plane, method: str, path: str, status: int, code: str) -> None:
    answer = plane.call(method, path)
    assert_problem(answer, status, code)
    if status == 405:
        assert ("GET" in answer.headers["allow"]) or ("POST" in answer.headers["allow"])


def test_a_slash_more_is_no_redirect(plane: Plane) -> None:
    """A redirect would carry a credential somewhere else."""
    assert plane.call("GET", PREFLIGHT + "/", headers={"X-API-Key": KEY}).status == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"])
def test_a_body_of_another_type(plane: Plane, agent: Agent, content_type: str) -> None:
    answer = plane.call("POST", HEARTBEAT, b"{}", {**agent.headers, "Content-Type": content_type})
    assert_problem(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"", 400, "malformed_json"),
        (b"{", 400, "malformed_json"),
        (b"\xff\xfe", 400, "malformed_json"),
        (b"[]", 422, "invalid_heartbeat"),
        (b"{}", 422, "invalid_heartbeat"),
        (b'{"protocol":1,"node_id":"gpu-a","instance_id":"11111111-a","run":-1,"seq":1}', 422, "invalid_heartbeat"),
        (b'{"protocol":1,"node_id":"gpu-a","instance_id":"11111111-a","run":1,"seq":1e400}', 422, "invalid_heartbeat"),
        (b'{"protocol":1,"node_id":"Gpu A","instance_id":"11111111-a","run":1,"seq":1}', 422, "invalid_node_id"),
        (b"[" * 100_000, 400, "malformed_json"),
    ],
)
def test_a_beat_that_is_none(plane: Plane, agent: Agent, raw: bytes, status: int, code: str) -> None:
    assert_problem(
        plane.call("POST", HEARTBEAT, raw, {**agent.headers, "Content-Type": "application/json"}), status, code
    )


def test_faults_of_a_beat_are_named_by_path(plane: Plane, agent: Agent) -> None:
    answer = agent.beat(slots={"total": "many"}, gpus=[{"vendor": "nvidia"}])
    assert_problem(answer, 422, "invalid_heartbeat")
    assert [fault["path"] for fault in answer.body["errors"]] == ["slots.total", "gpus.0.uuid"]


@pytest.mark.parametrize("size", [1024 * 1024 + 1, 2 * 1024 * 1024 + 100])
def test_a_body_that_is_too_large(tmp_path: Path, size: int) -> None:
    with running(tmp_path, max_body_mib=1) as plane:
        agent = Agent(plane)
        raw = b'{"padding":"' + b"x" * size + b'"}'
        answer = raw_post(plane, agent, raw, chunked=False)
        assert_problem(answer, 413, "body_too_large")
        assert_problem(raw_post(plane, agent, raw, chunked=True), 413, "body_too_large")
        # A call that has no use for a body takes no large one either.
        useless = plane.operator("POST", "/api/v1/nodes/gpu-a/uncordon", b" " * (1024 * 1024 + 1))
        assert_problem(useless, 413, "body_too_large")
        assert agent.beat(**FULL).status == 200


def raw_post(plane: Plane, agent: Agent, raw: bytes, *, chunked: bool) -> Answer:
    """Send what can be sent, and read the answer that comes meanwhile."""
    lines = [f"POST {HEARTBEAT} HTTP/1.1", "Host: x", "Content-Type: application/json", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in agent.headers.items()]
    lines.append("Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(raw)}")
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(raw), raw) if chunked else raw
    with socket.create_connection(("127.0.0.1", plane.port), timeout=30) as connection:
        received = bytearray()

        def read() -> None:
            try:
                while part := connection.recv(65536):
                    received.extend(part)
            except OSError:
                pass

        reader = threading.Thread(target=read)
        reader.start()
        try:
            connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        except OSError:
            pass  # the server has said enough and closed
        reader.join(30)
    head, _, rest = bytes(received).partition(b"\r\n\r\n")
    status, *fields = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    return Answer(int(status.split()[1]), headers, rest)


def test_what_http_itself_refuses_is_a_problem_too(plane: Plane) -> None:
    with socket.create_connection(("127.0.0.1", plane.port), timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: nonsense\r\n\r\n")
        text = connection.recv(65536).decode()
    assert text.startswith(("HTTP/1.1 501", "HTTP/1.1 400"))
    assert "application/problem+json" in text
    assert "X-Control-Plane-Id:" in text


@pytest.mark.case("FC-070")
def test_a_server_that_starts_asks_for_patience_and_spreads_the_return(tmp_path: Path) -> None:
    """After a restart all clients came back in the same seconds and knocked the server over again."""
    with running(tmp_path, start=False) as plane:
        agent = Agent(plane)
        answers = [agent.beat(**FULL) for _ in range(40)]
        for answer in answers:
            assert (answer.status, answer.code) == (503, "starting")
        waits = {int(answer.headers["retry-after"]) for answer in answers}
        assert len(waits) > 1
        assert waits <= set(range(1, 6))
        assert plane.call("GET", "/healthz").status == 200
        assert plane.call("GET", "/readyz").code == "starting"
        plane.parts.start()
        assert agent.beat(**FULL).status == 200
        assert plane.call("GET", "/readyz").body["status"] == "ready"


@pytest.mark.case("FC-073")
def test_slow_uploads_hold_no_thread(tmp_path: Path) -> None:
    """A few long requests used a small pool of threads up, and every heartbeat waited behind them."""
    with running(tmp_path, threads=2) as plane:
        agent = Agent(plane)
        assert agent.beat(**FULL).status == 200

        def slowest(beats: int) -> float:
            worst = 0.0
            for _ in range(beats):
                began = time.monotonic()
                assert agent.beat(**FULL).status == 200
                worst = max(worst, time.monotonic() - began)
            return worst

        quiet = slowest(30)
        done = threading.Event()
        slow = [threading.Thread(target=trickle, args=(plane.port, done)) for _ in range(8)]
        for thread in slow:
            thread.start()
        try:
            wait_until(lambda: connections(plane) >= 8, "eight slow uploads under way")
            busy = slowest(30)
            assert connections(plane) >= 8, "they were under way all the time"
        finally:
            done.set()
            for thread in slow:
                thread.join(30)
        # Two threads, eight uploads: if an upload held a thread, a beat would wait for as long as they last.
        assert busy < max(1.0, 20 * quiet)


def trickle(port: int, done: threading.Event) -> None:
    """A log upload that sends a byte now and then."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(
            b"POST /api/v1/tasks/x/logs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100000\r\n\r\n"
        )
        while not done.wait(0.05):
            connection.sendall(b" ")


def connections(plane: Plane) -> int:
    """Requests that waitress is half way through."""
    channels: list[Any] = list(plane.server._map.values())
    return sum(1 for channel in channels if getattr(channel, "request", None) is not None)


def test_a_fault_of_ours_is_a_problem_without_detail(
    plane: Plane, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> list[str]:
        raise RuntimeError("the secret inside")

    monkeypatch.setattr(plane.parts.presence, "record", broken)
    answer = agent.beat(**FULL)
    assert_problem(answer, 500, "internal_error")
    assert "secret inside" not in answer.raw.decode()


def test_metrics(tmp_path: Path) -> None:
    with running(tmp_path, metrics_public=True) as plane:
        agent = Agent(plane)
        agent.beat(
            **FULL,
            gpu_stats=[
                {"uuid": "GPU-a", "temperature_c": 41.5, "utilization_pct": 50, "memory_used_mib": 1, "power_w": 99}
            ],
        )
        text = plane.call("GET", "/metrics").raw.decode()
        labels = '{model="H100",node="gpu-a",uuid="GPU-a"}'
        for line in (
            'heterofleet_nodes{state="online"} 1.0',
            'heterofleet_tasks{status="running"} 0.0',
            'heterofleet_gpu_health{health="ok",node="gpu-a",uuid="GPU-b"} 1.0',
            f"heterofleet_gpu_utilization_ratio{labels} 0.5",
            f"heterofleet_gpu_memory_used_bytes{labels} 1.048576e+06",
            f"heterofleet_gpu_temperature_celsius{labels} 41.5",
            f"heterofleet_gpu_power_watts{labels} 99.0",
            "heterofleet_brake 0.0",
            "heterofleet_heartbeat_seconds_count 1.0",
        ):
            assert line in text.splitlines()
        # What was not measured is absent, not zero.
        assert 'heterofleet_gpu_power_watts{model="H100",node="gpu-a",uuid="GPU-b"}' not in text


def test_a_target_that_is_no_uri_is_answered(plane: Plane) -> None:
    with socket.create_connection(("127.0.0.1", plane.port), timeout=10) as connection:
        connection.sendall(b"GET http://[evil/healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 Bad Request"), "closed without an answer"
