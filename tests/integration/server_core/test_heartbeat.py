"""Heartbeats against a real server: digests, order, what a beat costs, what is written later."""

from __future__ import annotations

import http.client
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runtime.protocol import times
from runtime.protocol.heartbeat import STEADY
from runtime.protocol.problems import Problem
from runtime.server.services import flush as flushing
from runtime.server.store import tables
from tests.integration.server_core.plane import FULL, UNCHANGED, Agent, Plane, running, wait_until

NODE = "/api/v1/nodes/gpu-a"


def node(plane: Plane) -> dict[str, Any]:
    answer = plane.operator("GET", NODE)
    assert answer.status == 200
    found: dict[str, Any] = answer.body
    return found


def test_the_first_beat_registers_and_carries_everything(plane: Plane, agent: Agent) -> None:
    answer = agent.beat(**FULL)
    assert answer.status == 200
    assert answer.headers["connection"] == "close"
    body = answer.body
    assert body["registered"] is True
    assert body["control_plane_id"] == plane.parts.db.control_plane_id
    assert (body["interval_s"], body["intents"], body["follow"], body["send_full"]) == (5, [], [], [])
    assert body["pending"] == {"tasks": 0, "slices": 0, "images": 0, "files": 0}
    assert body["doorbell"] is None
    shown = node(plane)
    assert (shown["state"], shown["hostname"], shown["schedulable"]) == ("online", "host-a", True)
    assert [card["uuid"] for card in shown["gpus"]] == ["GPU-a", "GPU-b"]
    assert [event["node_id"] for event in plane.events("node_registered")] == ["gpu-a"]


def test_the_interval_is_the_servers(tmp_path: Path) -> None:
    with running(tmp_path, heartbeat_interval_s=7.5) as plane:
        assert Agent(plane).beat(**FULL).body["interval_s"] == 7.5


def test_a_steady_beat_costs_no_statement(plane: Plane, agent: Agent) -> None:
    agents = [Agent(plane, f"gpu-{number}", f"instance-{number:04d}") for number in range(20)]
    for one in agents:
        assert one.beat(**FULL).body["send_full"] == []
    wait_until(lambda: not plane.parts.presence.backlog, "the first beats are written")
    in_request: list[str] = []
    flushed: list[int] = []

    def count(_c: Any, _k: Any, statement: str, parameters: Any, *_: Any) -> None:
        import threading

        if threading.current_thread().name.startswith("waitress"):
            in_request.append(statement)
        elif statement.startswith("UPDATE nodes"):
            flushed.append(len(parameters))

    sa.event.listen(plane.parts.db.engine, "before_cursor_execute", count)
    for _ in range(10):
        for one in agents:
            assert one.beat(**UNCHANGED).body["send_full"] == []
    assert in_request == []
    wait_until(lambda: not plane.parts.presence.backlog, "the last beats are written")
    # 200 beats of 20 nodes were written by a handful of statements, each for many nodes.
    assert 1 <= len(flushed) <= 10
    with plane.parts.db.read() as connection:
        rows = connection.execute(sa.select(tables.nodes.c.id, tables.nodes.c.seq)).all()
    assert {row.id: row.seq for row in rows} == {one.node_id: one.seq for one in agents}


@pytest.mark.parametrize(
    ("first", "second", "send_full", "gpus", "hostname"),
    [
        pytest.param(FULL, UNCHANGED, [], 2, "host-a", id="unchanged"),
        pytest.param(FULL, {"digests": {"host": "h1", "gpus": "g2"}}, ["gpus"], 2, "host-a", id="digest not held"),
        pytest.param(FULL, {"digests": {"host": "h1"}}, [], None, "host-a", id="in neither: unknown"),
        pytest.param(FULL, {"gpus": [], "digests": {"gpus": "g3", "host": "h1"}}, [], 2, "host-a", id="an empty list"),
        pytest.param({}, UNCHANGED, ["gpus", "images", "host"], None, None, id="never sent"),
        pytest.param(
            FULL, {"host": {"cpu_percent": 9}, "digests": {"host": "h1", "gpus": "g1"}}, [], 2, "host-a", id="load only"
        ),
        pytest.param(
            FULL,
            {"host": {"hostname": "renamed"}, "digests": {"host": "h2", "gpus": "g1"}},
            [],
            2,
            "renamed",
            id="a section that changed",
        ),
    ],
)
def test_digests(
    plane: Plane,
    agent: Agent,
    first: dict[str, Any],
    second: dict[str, Any],
    send_full: list[str],
    gpus: int | None,
    hostname: str | None,
) -> None:
    agent.beat(**first)
    assert sorted(agent.beat(**second).body["send_full"]) == sorted(send_full)
    shown = node(plane)
    assert (len(shown["gpus"]) if shown["gpus"] is not None else None, shown["hostname"]) == (gpus, hostname)


def test_a_restarted_server_holds_what_it_had(tmp_path: Path) -> None:
    with running(tmp_path) as plane:
        agent = Agent(plane)
        agent.beat(**FULL)
        before = node(plane)
    with running(tmp_path) as plane:
        shown = node(plane)
        assert {key: shown[key] for key in ("hostname", "gpus", "host", "docker", "instance_id", "run")} == {
            key: before[key] for key in ("hostname", "gpus", "host", "docker", "instance_id", "run")
        }
        agent.plane = plane
        assert agent.beat(**UNCHANGED).body["send_full"] == []


def test_an_older_beat_refreshes_nothing_but_last_seen(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL)
    late = agent.body(host={"hostname": "from-the-past"}, gpus=[], digests={"host": "h0", "gpus": "g0"})
    agent.beat(**UNCHANGED)
    seen = node(plane)["last_seen_at"]
    answer = wait_until(
        lambda: plane.call("POST", "/api/v1/agent/heartbeat", late, agent.headers), "an answer to the late beat"
    )
    assert answer.status == 200
    shown = node(plane)
    assert (shown["hostname"], len(shown["gpus"])) == ("host-a", 2)
    assert shown["last_seen_at"] > seen


def test_a_flush_that_fails_loses_nothing(plane: Plane, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = plane.parts
    agent.beat(**FULL)
    wait_until(lambda: not parts.presence.backlog, "the first beat is written")
    write = parts.db.write

    def busy(_change: Any) -> Any:
        raise Problem("database_busy", "no")

    monkeypatch.setattr(parts.db, "write", busy)
    agent.beat(**{**FULL, "digests": {**FULL["digests"], "host": "h9"}, "host": {"hostname": "late"}})
    with pytest.raises(Problem):
        flushing.flush(parts.db, parts.presence)
    monkeypatch.setattr(parts.db, "write", write)

    def stored() -> bool:
        with parts.db.read() as connection:
            row = connection.execute(sa.select(tables.nodes)).one()
        return row.seq == agent.seq and row.facts["host"]["hostname"] == "late"

    wait_until(stored, "the beat is written by a later flush")


@pytest.mark.case("FC-015")
@pytest.mark.parametrize("skew_s", [600, -600, -1_700_000_000])
def test_a_wrong_clock_on_the_node_changes_no_state(plane: Plane, agent: Agent, skew_s: float) -> None:
    """Members whose clocks were off were marked offline although they answered."""
    agent.beat(**FULL, sent_at=times.to_wire(times.now() + timedelta(seconds=skew_s)))
    shown = node(plane)
    assert shown["state"] == "online"
    assert abs(shown["clock_skew_s"] - skew_s) < 30
    assert [warning["code"] for warning in shown["warnings"]] == ["clock_skew"]
    assert abs((times.from_wire(shown["last_seen_at"]) - times.now()).total_seconds()) < 30
    agent.beat(**FULL)
    assert node(plane)["warnings"] == []


@pytest.mark.case("FC-014")
def test_a_hostname_of_any_letters(plane: Plane, agent: Agent) -> None:
    """A machine name with accents and CJK went into an HTTP header, and the client died before its first call."""
    name = "节点-é-1 🚀"
    agent.beat(**{**FULL, "host": {"hostname": name}})
    assert node(plane)["hostname"] == name


def test_a_new_build_and_a_fabric_that_is_gone_are_events(plane: Plane, agent: Agent) -> None:
    old, new = {"version": "1.0.0", "commit": "aaa"}, {"version": "1.1.0", "commit": "bbb", "dirty": True}
    agent.beat(**FULL, agent=old, fabrics=[{"name": "ib-a"}, {"name": "ib-b"}])
    agent.beat(**UNCHANGED, agent=new, fabrics=[{"name": "ib-b"}])
    changed = wait_until(lambda: plane.events("build_changed"), "the event")
    assert [event["detail"] for event in changed] == ["1.0.0/aaa -> 1.1.0/bbb-dirty"]
    vanished = [event for event in plane.events("node_state") if event["code"] == "fabric_vanished"]
    assert [event["detail"] for event in vanished] == ["fabric ib-a is gone"]
    assert plane.operator("GET", "/api/v1/builds").body == {
        "builds": [{"version": "1.1.0", "commit": "bbb", "built_at": None, "dirty": True, "flagged": True, "nodes": 1}]
    }


def test_a_card_that_fails_three_beats_is_lost_and_told(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL)
    failing = {**UNCHANGED, "gpu_collect_failures": [{"uuid": "GPU-b", "reason": "Unknown Error"}]}
    for _ in range(3):
        agent.beat(**failing)
    assert plane.operator("GET", "/api/v1/gpus/GPU-b").body["health"] == "lost"
    assert plane.operator("GET", "/api/v1/gpus/GPU-a").body["health"] == "ok"
    lost = wait_until(lambda: plane.events("gpu_lost"), "the event")
    assert [event["gpu_uuid"] for event in lost] == ["GPU-b"]
    for _ in range(3):
        agent.beat(**UNCHANGED)
    assert plane.operator("GET", "/api/v1/gpus/GPU-b").body["health"] == "ok"
    wait_until(lambda: plane.events("gpu_returned"), "the event of its return")
    assert plane.operator("GET", "/api/v1/gpus/GPU-none").code == "gpu_not_found"


def test_a_collector_that_fails_is_said_and_shrinks_nothing(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL)
    for _ in range(3):
        agent.beat(**UNCHANGED, gpu_collector_error="nvidia-smi did not answer in 10 s")
    shown = node(plane)
    assert [card["health"] for card in shown["gpus"]] == ["unknown", "unknown"]
    assert shown["warnings"] == [
        {
            "code": "gpu_collector_failing",
            "detail": "The card collector fails: nvidia-smi did not answer in 10 s. Nobody can say how its cards are.",
        }
    ]
    text = plane.operator("GET", "/metrics").raw.decode()
    assert 'heterofleet_gpu_health{health="unknown",node="gpu-a",uuid="GPU-a"} 1.0' in text
    assert 'heterofleet_gpu_health{health="ok",node="gpu-a",uuid="GPU-a"} 0.0' in text
    agent.beat(**UNCHANGED)
    assert [card["health"] for card in node(plane)["gpus"]] == ["ok", "ok"]

    def told() -> list[str]:
        return [one["code"] for one in plane.events("node_state") if one["code"].startswith("gpu_")]

    wait_until(lambda: "gpu_collector_good" in told(), "the event of its end")
    assert told() == ["gpu_collector_error", "gpu_collector_good"]


def test_what_is_worth_knowing_of_a_card_is_a_warning_and_leaves_it_in_use(plane: Plane, agent: Agent) -> None:
    text = "reset needed: MIG mode is Disabled now and Enabled is pending"
    notes = [
        {"uuid": "GPU-a", "code": "mig_pending", "text": text},
        {"uuid": "GPU-b", "code": "unified_memory", "text": "no figure of its own"},
    ]
    agent.beat(**FULL, gpu_notes=notes)
    shown = node(plane)
    assert [card["health"] for card in shown["gpus"]] == ["ok", "ok"]
    assert shown["warnings"] == [{"code": "gpu_mig_pending", "detail": f"Card GPU-a: {text}."}]
    agent.beat(**UNCHANGED)
    assert node(plane)["warnings"] == []


def test_a_revision_never_reached_means_the_database_was_put_back(plane: Plane, agent: Agent) -> None:
    own = plane.parts.db.control_plane_id
    agent.beat(**FULL, seen_revision=5, seen_control_plane_id="another-control-plane")
    assert not plane.parts.rollback.active
    agent.beat(**FULL, seen_revision=5, seen_control_plane_id=own)
    assert plane.parts.rollback.active
    told = plane.events("database_rolled_back")
    assert [(event["code"], event["node_id"]) for event in told] == [("entered", "gpu-a")]
    assert plane.call("GET", "/readyz").body["rolled_back_since"] is not None
    agent.beat(**FULL, seen_revision=6, seen_control_plane_id=own)
    assert len(plane.events("database_rolled_back")) == 1


def test_a_rolled_back_database_stays_so_over_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as plane:
        Agent(plane).beat(**FULL, seen_revision=5)
    with running(tmp_path) as plane:
        assert plane.parts.rollback.active


@pytest.mark.parametrize("type_", ["application/json", "application/json; charset=utf-8"])
def test_a_beat_is_answered_alike_on_the_quick_and_on_the_ordinary_way(plane: Plane, agent: Agent, type_: str) -> None:
    """A longer type makes a beat take the framework's way: status, body and headers are the same."""
    agent.beat(**FULL)
    connection = http.client.HTTPConnection("127.0.0.1", plane.port, timeout=10)
    headers = {**agent.headers, "Content-Type": type_}
    connection.request("POST", "/api/v1/agent/heartbeat", json.dumps(agent.body(**FULL)), headers)
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    assert answer.status == 200
    assert body.pop("time")
    assert body == {
        "revision": plane.parts.db.revision,
        "registered": True,
        "control_plane_id": plane.parts.db.control_plane_id,
        "interval_s": 5,
        "pending": {"tasks": 0, "slices": 0, "images": 0, "files": 0},
        "intents": [],
        "follow": [],
        "send_full": [],
        "doorbell": None,
        "keeps": list(STEADY),
    }
    shown = {name.lower(): value for name, value in answer.getheaders()}
    assert shown.keys() == {
        *("connection", "content-length", "content-type", "date", "server"),
        *("x-control-plane-id", "x-revision"),
    }
    assert (shown["connection"], shown["content-type"]) == ("close", "application/json")
    assert shown["x-control-plane-id"] == plane.parts.db.control_plane_id


def test_a_beat_refused_on_the_quick_way_is_refused_in_words(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL)
    agent.run = 7
    assert agent.beat(**FULL).status == 200
    agent.run, agent.boot_id = 3, "boot-0001"
    refused = agent.beat(**FULL)
    assert (refused.status, refused.code) == (409, "stale_run")
    assert plane.call("POST", "/api/v1/agent/heartbeat", {"node_id": 5}, agent.headers).code == "invalid_heartbeat"
    agent.run = 7
    agent.seq = 100
    assert agent.beat(**FULL).status == 200
