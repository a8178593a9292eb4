"""The doctor's look at a control plane over real sockets: each way in which it can be wrong."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest

from runtime.agent.doctor import server as looking
from runtime.agent.doctor.findings import Finding
from runtime.agent.doctor.server import judge_clock, judge_key, judge_server, look_at_server
from runtime.agent.doctor.versions import judge_versions, look_at_versions
from runtime.agent.settings import AgentSettings
from runtime.protocol import routes
from runtime.protocol.times import now, to_wire
from tests.integration.agent_link.stub_server import Reply, StubServer, problem
from tests.integration.agent_link.test_client_tls import make_certificate

KEY = "0123456789abcdef"


def answer(**changed: object) -> Reply:
    body = {"control_plane_id": "cp", "server_version": "9.9", "protocol": 1, "protocol_min": 1, "time": to_wire(now())}
    return Reply(200, {**body, **changed})


def look(url: str, **settings: object) -> dict[str, Finding]:
    facts = look_at_server(AgentSettings(server_url=url, api_key=KEY, **settings))  # type: ignore[arg-type]
    found = (judge_server(facts), judge_key(facts, []), judge_clock(facts), judge_versions(look_at_versions(facts)))
    return {one.name: one for one in found}


def states(found: dict[str, Finding]) -> tuple[str, str, str]:
    return found["server"].state.value, found["key"].state.value, found["clock"].state.value


def test_a_good_one_is_asked_once_with_the_key_alone(server: StubServer) -> None:
    server.answers[routes.PREFLIGHT] = answer()
    found = look(server.url)
    assert states(found) == ("ok", "ok", "ok")
    assert "control plane 9.9" in found["versions"].text
    (request,) = server.of(routes.PREFLIGHT)
    assert request.headers["x-api-key"] == KEY
    assert not {"x-node-id", "x-instance-id"} & set(request.headers)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("reply", "wanted", "words"),
    [
        (answer(time="2020-01-01T00:00:00Z"), ("ok", "ok", "warning"), ["ahead of the control plane's clock"]),
        (problem(401, "bad_api_key"), ("ok", "failure", "unknown"), ["refuses the key", "401"]),
        (Reply(401, b"<html>"), ("ok", "failure", "unknown"), ["refuses the key"]),
        (Reply(302, b"", {"Location": "https://sso.example/"}), ("failure", "unknown", "unknown"), ["sso.example"]),
        (Reply(200, b"<html>a portal"), ("failure", "unknown", "unknown"), ["not JSON"]),
        (Reply(200, {"hello": 1}), ("failure", "unknown", "unknown"), ["another shape"]),
        (Reply(404, b"nope"), ("failure", "unknown", "unknown"), ["404", "is this a control plane"]),
        (problem(503, "starting"), ("warning", "unknown", "unknown"), ["starting", "ask again"]),
        (Reply(502, b"bad gateway"), ("failure", "unknown", "unknown"), ["502"]),
        (Reply(drop=True), ("failure", "unknown", "unknown"), []),
        (Reply(200, {"a": "b" * 100}, cut=True), ("failure", "unknown", "unknown"), ["cut"]),
        (Reply(hang=30), ("failure", "unknown", "unknown"), ["no answer within 0.5 s"]),
    ],
)
def test_answers(
    server: StubServer, monkeypatch: pytest.MonkeyPatch, reply: Reply, wanted: tuple, words: list[str]
) -> None:
    monkeypatch.setattr(looking, "ANSWER_S", 0.5)
    server.answers[routes.PREFLIGHT] = reply
    found = look(server.url)
    whole = " ".join(f"{one.text} {one.advice}" for one in found.values())
    assert states(found) == wanted, whole
    assert [word for word in words if word not in whole] == [], whole
    assert KEY not in whole


def test_protocols_that_do_not_meet(server: StubServer) -> None:
    server.answers[routes.PREFLIGHT] = answer(protocol=7, protocol_min=6)
    found = look(server.url)["versions"]
    assert found.state.value == "failure"
    assert "speaks 6 to 7" in found.text and "upgrade the agent" in found.advice


def test_certificates(server: StubServer, tmp_path: Path) -> None:
    """One that nobody vouches for is refused before the key is sent; one that ends tomorrow is said to."""
    ca_file, pair = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    server.answers[routes.PREFLIGHT] = answer()
    url = f"https://127.0.0.1:{server.port}"
    found = look(url)
    assert states(found) == ("failure", "unknown", "unknown")
    assert "certificate" in found["server"].text and "ca_file" in found["server"].advice
    assert server.requests == []
    found = look(url, ca_file=str(ca_file))
    assert states(found) == ("warning", "ok", "ok")
    assert "1 more days" in found["server"].text


def test_a_port_where_nothing_listens_and_one_that_speaks_no_tls(server: StubServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        found = look(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert found["server"].state.value == "failure"
    assert "Connection refused" in found["server"].text
    found = look(f"https://127.0.0.1:{server.port}")
    assert found["server"].state.value == "failure"
    assert server.requests == []


def test_name_servers_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(looking, "RESOLVE_S", 0.2)
    monkeypatch.setattr(looking.socket, "getaddrinfo", lambda *_, **__: never.wait())
    said: list[str] = []
    settings = AgentSettings(server_url="https://cp.example:3333", api_key=KEY)
    facts = look_at_server(settings, said.append)
    never.set()
    assert "no name server answered in 0.2 s" in judge_server(facts).text
    assert said[0] == "asking name servers for cp.example"


def test_a_proxy_is_what_is_connected_to_and_its_login_is_not_told(server: StubServer) -> None:
    server.answers["http://cp.internal.example/api/v1/agent/preflight"] = answer()
    proxy = f"http://worker:pr0xy-login@127.0.0.1:{server.port}"
    found = look("http://cp.internal.example", proxy=proxy, allow_plain_http=True)
    whole = " ".join(f"{one.text} {one.advice}" for one in found.values())
    assert states(found) == ("ok", "ok", "ok"), whole
    assert f"through the proxy 127.0.0.1:{server.port}" in found["server"].text
    assert "pr0xy-login" not in whole and "worker" not in whole


def test_without_a_key_nobody_is_asked(server: StubServer) -> None:
    facts = look_at_server(AgentSettings(server_url=server.url))
    assert judge_server(facts).state.value == "unknown"
    assert server.requests == []
