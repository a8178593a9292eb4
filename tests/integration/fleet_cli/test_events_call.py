"""``POST /api/v1/events``: what an operator's machine tells of a roll-out becomes an event."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.postgres import Postgres
from tests.integration.server_core.plane import Plane, running

EVENTS = "/api/v1/events"


@pytest.fixture(params=["sqlite", "postgresql"])
def plane(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Plane]:
    if request.param == "sqlite":
        with running(tmp_path) as made:
            yield made
        return
    cluster: Postgres = request.getfixturevalue("postgres")
    with cluster.database() as url, running(tmp_path, database_url=url) as made:
        yield made


def runs(plane: Plane) -> list[dict[str, Any]]:
    return [event for event in plane.events("operator_action") if event["code"].startswith("fleet_run")]


def test_what_is_told_becomes_an_event_of_its_teller(plane: Plane) -> None:
    told = plane.operator("POST", EVENTS, {"code": "fleet_run_started", "detail": "deploy to 3 hosts begins"})
    assert told.status == 201, told.raw
    plane.operator("POST", EVENTS, {"code": "fleet_run_ended", "detail": "deploy to 3 hosts has ended"})
    found = runs(plane)
    assert found[0] == told.body
    assert [(e["code"], e["actor"], e["detail"]) for e in found] == [
        ("fleet_run_started", "test-admin", "deploy to 3 hosts begins"),
        ("fleet_run_ended", "test-admin", "deploy to 3 hosts has ended"),
    ]


def test_the_same_words_twice_are_two_events(plane: Plane) -> None:
    report = {"code": "fleet_run_ended", "detail": "verify has ended"}
    first, second = (plane.operator("POST", EVENTS, report).body["id"] for _ in range(2))
    assert second > first


@pytest.mark.parametrize(
    ("report", "path"),
    [
        ({"code": "node_deleted", "detail": "x"}, "code"),  # what the server itself says nobody else may say
        ({"code": "fleet_run_ended"}, "detail"),
        ({"code": "fleet_run_ended", "detail": ""}, "detail"),
        ({"code": "fleet_run_ended", "detail": "x" * 1001}, "detail"),
        ({"code": "fleet_run_ended", "detail": "x", "actor": "somebody"}, "actor"),
    ],
)
def test_only_a_code_of_the_list_with_a_short_sentence_is_taken(
    tmp_path: Path, report: dict[str, Any], path: str
) -> None:
    with running(tmp_path) as plane:
        refused = plane.operator("POST", EVENTS, report)
        assert (refused.status, refused.code) == (422, "invalid_task")
        assert [fault["path"] for fault in refused.body["errors"]] == [path]
        assert runs(plane) == []


def test_viewers_and_agents_tell_nothing(tmp_path: Path) -> None:
    report = {"code": "fleet_run_started", "detail": "x"}
    with running(tmp_path) as plane:
        assert plane.operator("POST", EVENTS, report, role="viewer").code == "role_not_allowed"
        assert plane.call("POST", EVENTS, report).code == "bad_token"
        agent = plane.call("POST", EVENTS, report, {"X-API-Key": plane.parts.settings.api_key or ""})
        assert agent.status in (401, 403)
        assert runs(plane) == []
