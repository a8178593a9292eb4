"""The client against a real server on loopback: what each kind of answer becomes, and what is never done."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from runtime.agent.link.client import ServerClient
from runtime.agent.link.errors import Refused, Unavailable
from runtime.agent.settings import AgentSettings
from runtime.protocol.heartbeat import Heartbeat
from runtime.protocol.instructions import Channel, InstructionStatus, InstructionUpdate
from runtime.protocol.states import Status
from runtime.protocol.tasks import CheckpointResume, LogChunk, Reclaim, TaskUpdate
from tests.integration.agent_link.stub_server import (
    CONTROL_PLANE,
    Reply,
    StubServer,
    beat_answer,
    problem,
    stub_server,
)
from tests.unit.agent_link.agent_stubs import StubIdentity

KEY = "0123456789abcdef"
BEAT = Heartbeat(protocol=1, node_id="gpu-a", instance_id="instance-1", run=1, seq=1)
HEARTBEAT = "/api/v1/agent/heartbeat"
TASK = "/api/v1/tasks/t1"


def client_of(url: str, **options) -> ServerClient:
    limits = {name: options.pop(name) for name in ("connect_s", "beat_read_s", "read_s") if name in options}
    return ServerClient(AgentSettings(server_url=url, api_key=KEY, **options), StubIdentity(), **limits)


@pytest.mark.parametrize(
    ("reply", "kind", "words", "retry_after"),
    [
        (problem(404, "task_not_found"), Refused, "task_not_found", None),
        (problem(409, "state_conflict", claim_token_matches=True), Refused, "state_conflict", None),
        (problem(401, "bad_api_key"), Refused, "bad_api_key", None),
        (Reply(401, b"<html>no</html>", {"Content-Type": "text/html"}), Refused, "bad_api_key", None),
        (problem(403, "node_scope_mismatch"), Refused, "node_scope_mismatch", None),
        (problem(422, "invalid_task"), Refused, "invalid_task", None),
        (problem(408, "x"), Unavailable, "408", None),
        (problem(429, "too_many_requests"), Unavailable, "too_many_requests", None),
        (problem(503, "overloaded"), Unavailable, "overloaded", None),
        (Reply(503, {}, {"Retry-After": "7"}), Unavailable, "503", 7.0),
        (Reply(503, {}, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}), Unavailable, "503", None),
        (Reply(500, b"boom", {"Content-Type": "text/plain"}), Unavailable, "500", None),
        (
            Reply(404, b"<html>nginx</html>", {"Content-Type": "text/html"}),
            Unavailable,
            "is this a control plane",
            None,
        ),
        (Reply(200, b"<html>login</html>", {"Content-Type": "text/html"}), Unavailable, "not JSON", None),
        (Reply(200, {"id": 7}), Unavailable, "another shape", None),
        (Reply(200, [1]), Unavailable, "another shape", None),
        (Reply(200, {"id": "t1", "uid": "u" * 4000}, cut=True), Unavailable, "the answer was cut", None),
        (Reply(302, b"", {"Location": "https://elsewhere.example/"}), Unavailable, "https://elsewhere.example/", None),
    ],
)
def test_what_an_answer_becomes(server: StubServer, reply, kind, words: str, retry_after) -> None:
    server.answers[TASK] = reply
    with pytest.raises(kind, match=words) as caught:
        client_of(server.url).task("t1")
    assert len(server.requests) == 1
    if kind is Unavailable:
        assert caught.value.answered and caught.value.retry_after == retry_after
    else:
        assert caught.value.problem.status == reply.status
        assert caught.value.problem.members.get("claim_token_matches") in (None, True)


def test_no_answer_is_unavailable_and_unanswered() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Unavailable, match="refused") as caught:
            client_of(f"http://127.0.0.1:{taken.getsockname()[1]}").preflight()
    assert not caught.value.answered


def test_a_connection_that_is_dropped_before_an_answer_leaves_the_outcome_unknown(server: StubServer) -> None:
    client = client_of(server.url)
    client.pending()
    server.answers[TASK] = Reply(drop=True)
    with pytest.raises(Unavailable) as caught:
        client.task("t1")
    assert not caught.value.answered
    assert len(server.of(TASK)) == 1  # not repeated behind the caller's back
    server.answers[TASK] = problem(404, "task_not_found")
    with pytest.raises(Refused):
        client.task("t1")


def test_redirects_are_not_followed_with_the_key(server: StubServer) -> None:
    with stub_server() as other:
        server.answers[HEARTBEAT] = Reply(307, b"", {"Location": f"{other.url}/steal"})
        with pytest.raises(Unavailable, match=f"points to {other.url}/steal.*server_url"):
            client_of(server.url).heartbeat(BEAT)
        assert other.requests == []


@pytest.mark.case("FC-051")
def test_the_environment_s_proxies_and_netrc_are_not_read(server: StubServer, monkeypatch, tmp_path) -> None:
    """What happened: with HTTP_PROXY set, calls to 127.0.0.1 went to the proxy and failed."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password secret-of-netrc\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.0/8")
    client_of(server.url).pending()
    assert "authorization" not in server.requests[0].headers
    assert server.requests[0].headers["x-api-key"] == KEY


def test_calls_go_by_the_proxy_of_the_settings(server: StubServer) -> None:
    client_of("http://10.255.255.1:3333", proxy=server.url).pending()
    assert server.requests[0].path.startswith("http://10.255.255.1:3333/api/v1/agent/pending")


def test_a_server_that_never_answers_is_given_up_within_the_limit(server: StubServer) -> None:
    """What happened: the client waited for hours on a read that could never end."""
    server.answers[HEARTBEAT] = Reply(hang=60)
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"no answer within 0\.3 s"):
        client_of(server.url, beat_read_s=0.3).heartbeat(BEAT)
    assert time.monotonic() - began < 30


def test_an_answer_that_drips_is_given_up_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
                while not done.wait(0.05):
                    try:
                        connection.sendall(b" ")
                    except OSError:
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        began = time.monotonic()
        with pytest.raises(Unavailable, match="did not end in time"):
            client_of(f"http://127.0.0.1:{listener.getsockname()[1]}", read_s=0.5).pending()
        assert time.monotonic() - began < 30
        done.set()
        thread.join(40)
        assert not thread.is_alive()


def test_an_answer_over_the_limit_is_given_up(server: StubServer, monkeypatch) -> None:
    monkeypatch.setattr("runtime.agent.link.answers.ANSWER_LIMIT", 100_000)
    server.answers[TASK] = Reply(200, {"id": "x" * 300_000})
    with pytest.raises(Unavailable, match="more than 100000 bytes"):
        client_of(server.url).task("t1")


def test_a_beat_is_not_delayed_by_another_call(server: StubServer) -> None:
    server.answers["/api/v1/tasks"] = Reply(hang=60)
    server.answers[HEARTBEAT] = beat_answer()
    client = client_of(server.url, read_s=60)
    hanging = [threading.Thread(target=_swallow, args=(client.scheduled_tasks,), daemon=True) for _ in range(25)]
    for thread in hanging:
        thread.start()
    server.wait_for("/api/v1/tasks", 20)
    began = time.monotonic()
    client.heartbeat(BEAT)
    assert time.monotonic() - began < 30
    server.closing.set()
    for thread in hanging:
        thread.join(40)


def _swallow(call) -> None:
    try:
        call()
    except (Unavailable, Refused):
        pass


def test_control_plane_and_revision_are_those_of_the_newest_answer(server: StubServer) -> None:
    client = client_of(server.url)
    assert client.control_plane_id is None and client.revision is None
    client.pending()
    assert (client.control_plane_id, client.revision) == (CONTROL_PLANE, 5)
    reply = problem(409, "state_conflict")
    reply.headers.update({"X-Revision": "9"})
    server.answers[TASK] = reply
    with pytest.raises(Refused):
        client.task("t1")
    assert client.revision == 9
    server.answers[TASK] = Reply(502, b"", {"X-Control-Plane-Id": "other", "X-Revision": "1"})
    with pytest.raises(Unavailable):
        client.task("t1")
    assert (client.control_plane_id, client.revision) == (CONTROL_PLANE, 9)


def test_an_older_request_s_late_answer_does_not_turn_the_revision_back(server: StubServer) -> None:
    let_go = threading.Event()

    def late(request) -> Reply:
        assert let_go.wait(40)
        return Reply(404, problem(404, "task_not_found").body, {"Content-Type": "application/problem+json"})

    server.answers[TASK] = late
    newer = Reply(200, {}, {"X-Revision": "8"})
    server.answers["/api/v1/agent/pending"] = newer
    client = client_of(server.url)
    older = threading.Thread(target=_swallow, args=(lambda: client.task("t1"),))
    older.start()
    server.wait_for(TASK)
    client.pending()
    let_go.set()
    older.join(40)
    assert client.revision == 8


def test_each_call_has_the_contract_s_shape(server: StubServer) -> None:
    task = Reply(200, {"id": "t1", "uid": "u", "status": "running", "attempt": 2})
    request = {"id": "r1", "channel": "image", "node_id": "gpu-a", "status": "running", "request": {}}
    server.answers.update(
        {
            TASK: task,
            f"{TASK}/reclaim": task,
            "/api/v1/tasks": Reply(200, {"tasks": [task.body]}),
            "/api/v1/agent/image-requests": Reply(200, {"requests": [request]}),
            "/api/v1/agent/image-requests/r1": Reply(200, request),
        }
    )
    client = client_of(server.url)
    update = TaskUpdate("gpu-a", 2, "token-token", Status.SCHEDULED, Status.RUNNING)
    assert client.scheduled_tasks(7)[0].id == "t1"
    assert client.task("t1", "token-token").uid == "u"
    assert client.update_task("t1", update).status is Status.RUNNING
    client.reclaim("t1", Reclaim("gpu-a", "instance-1", 2, "token-token"))
    client.post_logs("t1", LogChunk(2, "token-token", 0, 3, "abc"))
    client.checkpoint_resume("t1", CheckpointResume(2, "token-token", False))
    assert client.instructions(Channel.IMAGE)[0].id == "r1"
    client.update_instruction(
        Channel.IMAGE,
        "r1",
        InstructionUpdate("gpu-a", "token-token", InstructionStatus.PENDING, InstructionStatus.RUNNING),
    )
    assert [(r.method, r.path) for r in server.requests] == [
        ("GET", "/api/v1/tasks?node_id=gpu-a&status=scheduled&limit=7"),
        ("GET", TASK),
        ("PUT", TASK),
        ("POST", f"{TASK}/reclaim"),
        ("POST", f"{TASK}/logs"),
        ("POST", f"{TASK}/checkpoint-resume"),
        ("GET", "/api/v1/agent/image-requests?node_id=gpu-a&status=pending&limit=5"),
        ("PUT", "/api/v1/agent/image-requests/r1"),
    ]
    assert server.requests[1].headers["x-claim-token"] == "token-token"
    assert server.requests[2].body == {
        "node_id": "gpu-a",
        "attempt": 2,
        "claim_token": "token-token",
        "from_status": "scheduled",
        "status": "running",
    }
    assert server.requests[4].body["from"] == 0 and server.requests[4].body["to"] == 3
    for sent in server.requests:
        assert (sent.headers["x-node-id"], sent.headers["x-instance-id"]) == ("gpu-a", "instance-1")


def test_the_call_that_nothing_follows_keeps_no_connection(server: StubServer) -> None:
    client_of(server.url).pending()
    assert server.requests[0].headers["connection"] == "close"


def test_preflight_sends_the_key_alone(server: StubServer) -> None:
    server.answers["/api/v1/agent/preflight"] = Reply(
        200, {"control_plane_id": "c", "server_version": "1", "protocol": 1, "protocol_min": 1, "time": "t"}
    )
    assert client_of(server.url).preflight().control_plane_id == "c"
    assert "x-node-id" not in server.requests[0].headers


@pytest.mark.case("FC-014")
def test_a_hostname_in_any_script_travels_in_the_body(server: StubServer) -> None:
    """What happened: such a name was put into a header, and the client crashed before its first request."""
    from runtime.protocol.hardware import Host

    server.answers[HEARTBEAT] = beat_answer()
    beat = Heartbeat(1, "node-1", "instance-1", 1, 1, host=Host(hostname="节点-é-1"))
    client_of(server.url).heartbeat(beat)
    assert server.requests[0].body["host"]["hostname"] == "节点-é-1"
    assert json.dumps(server.requests[0].headers).isascii()


def test_the_doorbell_s_address_must_be_the_server_s_host(server: StubServer) -> None:
    with pytest.raises(Unavailable, match="not the host of server_url"):
        client_of(server.url).doorbell("http://10.0.0.9:3334/api/v1/agent/doorbell", 5)
    assert server.requests == []


@pytest.mark.parametrize("url", ["http://doorbell.example:3334/", "127.0.0.1:3334", "ftp://127.0.0.1/"])
def test_a_doorbell_s_address_that_cannot_be_used_is_no_fault_of_the_agent(server: StubServer, url: str) -> None:
    with pytest.raises(Unavailable, match="the doorbell's address cannot be used"):
        client_of(server.url).doorbell(url, 5)
