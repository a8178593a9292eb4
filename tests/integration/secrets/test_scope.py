"""Who may call what: every route of the application against every way to come with, or without, a credential."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from runtime.protocol import times
from runtime.server.app import assemble
from runtime.server.services import tokens
from tests.integration.server_core.plane import FULL, KEY, Agent, Answer, Plane, running

PUBLIC, AGENT, VIEWER, ADMIN, EITHER = "public", "agent", "viewer", "admin", "either"

CHANNELS = "<any(slice, image, file):channel>-requests"
ACTIONS = "<any(stop, sleep, wake, reschedule):action>"
API = "/api/v1"
ROUTES = {
    ("GET", "/healthz"): PUBLIC,
    ("GET", "/readyz"): PUBLIC,
    ("GET", "/openapi.json"): PUBLIC,
    ("GET", "/static/agent"): PUBLIC,
    ("GET", "/static/agent/manifest.json"): PUBLIC,
    ("GET", "/metrics"): VIEWER,
    ("GET", f"{API}/agent/preflight"): AGENT,
    ("POST", f"{API}/agent/heartbeat"): AGENT,
    ("GET", f"{API}/agent/pending"): AGENT,
    ("GET", f"{API}/agent/{CHANNELS}"): AGENT,
    ("PUT", f"{API}/agent/{CHANNELS}/<instruction_id>"): AGENT,
    ("PUT", f"{API}/tasks/<task_id>"): AGENT,
    ("POST", f"{API}/tasks/<task_id>/reclaim"): AGENT,
    ("POST", f"{API}/tasks/<task_id>/logs"): AGENT,
    ("POST", f"{API}/tasks/<task_id>/checkpoint-resume"): AGENT,
    ("GET", f"{API}/tasks"): EITHER,
    ("GET", f"{API}/tasks/<task_id>"): EITHER,
    ("POST", f"{API}/tasks"): ADMIN,
    ("DELETE", f"{API}/tasks/<task_id>"): ADMIN,
    ("POST", f"{API}/tasks/<task_id>/{ACTIONS}"): ADMIN,
    ("GET", f"{API}/tasks/<task_id>/logs"): VIEWER,
    ("GET", f"{API}/tasks/<task_id>/why"): VIEWER,
    ("GET", f"{API}/nodes"): VIEWER,
    ("GET", f"{API}/nodes/<node_id>"): VIEWER,
    ("DELETE", f"{API}/nodes/<node_id>"): ADMIN,
    ("POST", f"{API}/nodes/<node_id>/cordon"): ADMIN,
    ("POST", f"{API}/nodes/<node_id>/uncordon"): ADMIN,
    ("POST", f"{API}/nodes/<node_id>/drain"): ADMIN,
    ("POST", f"{API}/nodes/<node_id>/release"): ADMIN,
    ("GET", f"{API}/gpus"): VIEWER,
    ("GET", f"{API}/gpus/<uuid>"): VIEWER,
    ("GET", f"{API}/gpus/<uuid>/history"): VIEWER,
    ("GET", f"{API}/gpus/<uuid>/why"): VIEWER,
    ("GET", f"{API}/nodes/<node_id>/why"): VIEWER,
    ("GET", f"{API}/builds"): VIEWER,
    ("GET", f"{API}/events"): VIEWER,
    ("POST", f"{API}/events"): ADMIN,
    ("POST", f"{API}/{CHANNELS}"): ADMIN,
    ("GET", f"{API}/{CHANNELS}"): VIEWER,
    ("GET", f"{API}/{CHANNELS}/<instruction_id>"): VIEWER,
    ("POST", f"{API}/{CHANNELS}/<instruction_id>/cancel"): ADMIN,
}
"""Method and rule -> who. The scripts (``/*.sh``) are public and not listed one by one."""

LET_IN = ""
"""The caller passes; what the call itself makes of an empty body or an unknown id is another matter."""

AUTH_CODES = {
    *("bad_api_key", "bad_token", "agent_key_not_allowed", "operator_token_not_allowed", "role_not_allowed"),
    "instance_mismatch",
}

BY_OPERATOR = {
    "nothing": "bad_token",
    "wrong key": "bad_api_key",
    "key": "agent_key_not_allowed",
    "key of another node": "agent_key_not_allowed",
    "viewer": LET_IN,
    "admin": LET_IN,
    "expired": "bad_token",
    "revoked": "bad_token",
    "key as token": "bad_token",
    "token as key": "bad_api_key",
    "basic": "bad_token",
    "key and token": LET_IN,
    "wrong key and token": LET_IN,
    "key and wrong token": "bad_token",
}
BY_AGENT = {
    "nothing": "bad_api_key",
    "wrong key": "bad_api_key",
    "key": LET_IN,
    "key of another node": "instance_mismatch",
    "viewer": "operator_token_not_allowed",
    "admin": "operator_token_not_allowed",
    "expired": "bad_token",
    "revoked": "bad_token",
    "key as token": "bad_token",
    "token as key": "bad_api_key",
    "basic": "bad_token",
    "key and token": LET_IN,
    "wrong key and token": "bad_api_key",
    "key and wrong token": LET_IN,
}
EXPECTED: dict[str, dict[str, str]] = {
    PUBLIC: dict.fromkeys(BY_AGENT, LET_IN),
    AGENT: BY_AGENT,
    VIEWER: BY_OPERATOR,
    ADMIN: {**BY_OPERATOR, "viewer": "role_not_allowed"},
    EITHER: {
        **BY_OPERATOR,
        "nothing": "bad_api_key",
        "key": LET_IN,
        "key of another node": "instance_mismatch",
    },
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running(tmp_path_factory.mktemp("plane")) as made:
        assert Agent(made).beat(**FULL).status == 200
        yield made


@pytest.fixture(scope="module")
def credentials(plane: Plane) -> dict[str, dict[str, str]]:
    db, now = plane.parts.db, times.now()
    made = {role: tokens.create(db, f"scope-{role}", role, now, None) for role in ("viewer", "admin")}
    made["expired"] = tokens.create(db, "scope-expired", "admin", now - timedelta(days=2), 1)
    made["revoked"] = tokens.create(db, "scope-revoked", "admin", now, None)
    assert tokens.revoke(db, "scope-revoked")
    bearer = {name: {"Authorization": f"Bearer {token}"} for name, token in made.items()}
    key = Agent(plane).headers
    wrong = {**key, "X-API-Key": KEY[:-1] + "T"}
    return {
        "nothing": {},
        "wrong key": wrong,
        "key": key,
        "key of another node": {**key, "X-Node-Id": "gpu-b"},
        **bearer,
        "key as token": {"Authorization": f"Bearer {KEY}"},
        "token as key": {**key, "X-API-Key": made["admin"]},
        "basic": {"Authorization": "Basic YWRtaW46YWRtaW4="},
        "key and token": {**key, **bearer["admin"]},
        "wrong key and token": {**wrong, **bearer["admin"]},
        "key and wrong token": {**key, **bearer["revoked"]},
    }


def test_every_route_has_its_line(plane: Plane) -> None:
    """A route that is added is not open to all because nobody thought of it."""
    rules = assemble(plane.parts).url_map.iter_rules()
    found = {(method, rule.rule) for rule in rules for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}}
    scripts = {route for route in found if re.fullmatch(r"/[a-z-]+\.sh", route[1])}
    assert all(method == "GET" for method, _ in scripts) and len(scripts) >= 2
    assert found - scripts == set(ROUTES)


def asked(plane: Plane, method: str, rule: str, headers: dict[str, str]) -> Answer:
    """The route with ids that nothing has, and a body that no call takes: who passes is stopped later on."""
    path = rule.replace("<any(slice, image, file):channel>", "image").replace(ACTIONS, "stop")
    path = re.sub("<[^>]*>", "nothing-has-this-id", path)
    return plane.call(method, path, None if method in ("GET", "DELETE") else [], headers)


@pytest.mark.parametrize(("method", "rule"), ROUTES, ids=[f"{method} {rule}" for method, rule in ROUTES])
def test_a_route_lets_in_whom_it_should(
    plane: Plane, credentials: dict[str, dict[str, str]], method: str, rule: str
) -> None:
    wanted = dict(EXPECTED[ROUTES[method, rule]])
    if rule.endswith(("/preflight", "/heartbeat")):
        wanted["key of another node"] = LET_IN  # the first takes the key alone, the second is what binds a node
    found: dict[str, str] = {}
    for name, headers in credentials.items():
        answer = asked(plane, method, rule, headers)
        code = answer.body.get("code", "") if answer.headers.get("content-type") == "application/problem+json" else ""
        found[name] = code if code in AUTH_CODES else LET_IN
        if code in AUTH_CODES:
            assert answer.status == (401 if code.startswith("bad_") else 403)
            sent = {value for header in headers.values() for value in (header, header.partition(" ")[2]) if value}
            assert not any(
                value.encode() in answer.raw for value in sent - {"gpu-a", "gpu-b", headers.get("X-Instance-Id")}
            )
    assert found == wanted


@pytest.mark.parametrize("query", ["", "node_id=gpu-a", "status=scheduled"])
def test_with_the_key_tasks_are_listed_by_node_and_status(plane: Plane, query: str) -> None:
    answer = plane.call("GET", f"{API}/tasks?{query}", headers=Agent(plane).headers)
    assert (answer.status, answer.code) == (400, "node_scope_required")


def test_the_key_of_one_node_does_not_list_anothers_tasks(plane: Plane) -> None:
    answer = plane.call("GET", f"{API}/tasks?node_id=gpu-b&status=running", headers=Agent(plane).headers)
    assert (answer.status, answer.code) == (403, "node_scope_mismatch")


@pytest.mark.parametrize(
    "headers",
    [
        [("X-API-Key", KEY), ("X-API-Key", KEY)],
        [("X-API-Key", KEY), ("X-API-Key", "wrong")],
        [("X-API-Key", "wrong"), ("X-API-Key", KEY)],
        [("X-API-Key", f"{KEY}, {KEY}")],
        [("X-API-Key", f" {KEY[:8]} {KEY[8:]}")],
        [("X-Api_Key", KEY)],
        [("X-API-Key", KEY.lower())],
        [("X-API-Key", "clé-" + KEY)],
    ],
)
def test_a_key_that_is_nearly_one(plane: Plane, headers: list[tuple[str, str]]) -> None:
    """Given twice, in pieces, under another name, in another case or another alphabet: it is a wrong key."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", plane.port, timeout=10)
    try:
        connection.putrequest("GET", f"{API}/agent/preflight")
        for name, value in headers:
            connection.putheader(name, value.encode("latin-1"))
        connection.endheaders()
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 401
    finally:
        connection.close()


def test_a_refusal_names_no_secret_and_leaves_the_log_quiet(plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody who tries keys fills no log, and every refusal reads the same."""
    caplog.set_level("DEBUG")
    answers: set[Any] = set()
    for number in range(300):
        answer = plane.call("GET", f"{API}/agent/preflight", headers={"X-API-Key": f"guess-number-{number:05d}"})
        answers.add((answer.status, answer.raw))
    assert {status for status, _ in answers} == {401} and len(answers) == 1
    assert "guess-number" not in caplog.text
    assert len([record for record in caplog.records if record.name.startswith("runtime")]) <= 3


def test_both_keys_are_compared_whatever_the_first_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that ends early tells by its time how much of a guess was right."""
    import hmac

    seen: list[bytes] = []
    compare = hmac.compare_digest

    def watched(given: bytes, key: bytes) -> bool:
        seen.append(key)
        return compare(given, key)

    previous = "old-Key_3847562910"
    with running(tmp_path, api_key_previous=previous) as made:
        monkeypatch.setattr("runtime.server.auth.hmac.compare_digest", watched)
        for key in (KEY, previous, "x"):
            seen.clear()
            made.call("GET", f"{API}/agent/preflight", headers={"X-API-Key": key})
            assert seen == [KEY.encode(), previous.encode()]
