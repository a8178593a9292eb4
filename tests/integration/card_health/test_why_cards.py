"""What is said of a card that is not given out, and of the work that wants it or has it: over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.server_core.plane import FULL, UNCHANGED, Agent, Plane, running, wait_until

LOST = {"gpu_collect_failures": [{"uuid": "GPU-b", "index": 1, "reason": "GPU is lost"}]}
API = "/api/v1"


@pytest.fixture(scope="module")
def whole_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Plane, Agent]]:
    with running(tmp_path_factory.mktemp("why")) as plane:
        yield plane, Agent(plane)


@pytest.fixture
def fleet(whole_plane: tuple[Plane, Agent]) -> tuple[Plane, Agent]:
    """One node with two cards, both well."""
    plane, agent = whole_plane
    for _ in range(4):
        assert agent.beat(**FULL).status == 200
    return plane, agent


def why(plane: Plane, what: str) -> dict[str, Any]:
    found: dict[str, Any] = plane.operator("GET", f"{API}/{what}/why").body
    return found


def test_a_restart_of_the_server_takes_no_lost_card_for_a_good_one(tmp_path: Path) -> None:
    with running(tmp_path) as plane:
        agent = Agent(plane)
        agent.beat(**FULL)
        for _ in range(3):
            agent.beat(**UNCHANGED, **LOST)
        before = why(plane, "gpus/GPU-b")
        wait_until(lambda: len(plane.events("gpu_lost")) == 1, "it is written")
    with running(tmp_path) as plane:
        agent.plane = plane
        body = {"name": "t", "id": "t1", "image": "a/b:1", "gpus": {"count": 1, "uuids": ["GPU-b"]}}
        assert plane.operator("POST", f"{API}/tasks", body).status == 201
        assert "is lost" in why(plane, "tasks/t1")["summary"], "before the node's first beat"
        for _ in range(2):
            agent.beat(**UNCHANGED)
            after = why(plane, "gpus/GPU-b")
            assert (after["state"], after["since"]) == ("lost", before["since"])
        agent.beat(**UNCHANGED)
        assert why(plane, "gpus/GPU-b")["state"] == "ok"
        wait_until(lambda: plane.operator("GET", f"{API}/tasks/t1").body["status"] == "scheduled", "it is placed")
        wait_until(lambda: len(plane.events("gpu_returned")) == 1, "it is written")
        assert [len(plane.events(kind)) for kind in ("gpu_suspect", "gpu_lost")] == [1, 1], "it is told once"


def failing(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["code"]: one for node in body["nodes"] for one in node["constraints"] if not one["ok"]}


def test_a_well_card(fleet: tuple[Plane, Agent]) -> None:
    plane, _ = fleet
    card = why(plane, "gpus/GPU-b")
    assert (card["subject"], card["state"], card["fits"]) == ({"kind": "gpu", "id": "GPU-b"}, "ok", True)
    assert card["summary"] == "Card GPU-b of gpu-a is well and free." and card["smallest_change"] is None
    node = why(plane, "nodes/gpu-a")
    assert (node["subject"], node["state"], node["fits"]) == ({"kind": "node", "id": "gpu-a"}, "online", True)
    assert node["summary"] == "gpu-a takes new work: nothing keeps it from new work."
    assert plane.operator("GET", f"{API}/gpus/GPU-none/why").code == "gpu_not_found"
    assert plane.operator("GET", f"{API}/nodes/none/why").code == "node_not_found"


def test_a_lost_card_says_since_when_and_for_what(fleet: tuple[Plane, Agent]) -> None:
    plane, agent = fleet
    for _ in range(3):
        agent.beat(**UNCHANGED, **LOST)
    card = why(plane, "gpus/GPU-b")
    assert (card["state"], card["fits"]) == ("lost", False) and card["since"].startswith("20")
    assert card["summary"].startswith(
        f"Card GPU-b is lost since {card['since']} (GPU is lost), on gpu-a; it comes back"
    )
    (evidence,) = failing(card)["health"]["evidence"]
    assert evidence["since"] == card["since"] and evidence["reason"] == "GPU is lost" and evidence["help"]
    assert card["smallest_change"]["code"] == "health"
    words = why(plane, "nodes/gpu-a")["summary"]
    assert words.startswith(
        f"gpu-a takes new work, but not on each of its cards: card GPU-b is lost since {card['since']}"
    )
    agent.beat(**UNCHANGED)
    assert "well for 1 beat by now" in why(plane, "gpus/GPU-b")["summary"]


def test_a_card_that_others_hold_says_who(fleet: tuple[Plane, Agent]) -> None:
    plane, agent = fleet
    agent.beat(**UNCHANGED, gpu_holders=[{"uuid": "GPU-b", "pid": 4711, "name": "python", "ours": False}])
    card = why(plane, "gpus/GPU-b")
    assert (card["state"], card["fits"]) == ("dirty", False)
    assert "held by process 4711 (python)" in card["summary"] and "end what holds it" in card["summary"]
    agent.beat(**UNCHANGED, gpu_holders=[])
    assert why(plane, "gpus/GPU-b")["fits"]


def test_a_failing_card_tool_is_quoted(fleet: tuple[Plane, Agent]) -> None:
    plane, agent = fleet
    for _ in range(3):
        agent.beat(**UNCHANGED, gpu_collector_error="nvidia-smi did not answer in 10 s")
    node = why(plane, "nodes/gpu-a")
    assert not node["fits"] and node["summary"].startswith("gpu-a takes new work, but none with cards: its cards are ")
    assert node["summary"].count("nvidia-smi did not answer in 10 s") == 1, node["summary"]
    card = why(plane, "gpus/GPU-a")
    assert set(failing(card)) == {"collector", "health", "free"}
    assert card["state"] == "unknown" and card["since"].startswith("20") and "doctor" in card["summary"]
    assert card["summary"].startswith(
        f"Card GPU-a is unknown since {card['since']} (it cannot be judged: its node's card tool fails (nvidia-smi did "
        "not answer in 10 s)), on gpu-a; "
    )


def test_a_node_that_went_has_no_card_that_is_well(fleet: tuple[Plane, Agent]) -> None:
    plane, agent = fleet
    agent.beat(**UNCHANGED, leaving=True)
    wait_until(lambda: why(plane, "nodes/gpu-a")["state"] == "offline", "it is offline")
    shown = plane.operator("GET", f"{API}/gpus").body["gpus"]
    assert [card["health"] for card in shown] == ["unknown", "unknown"]
    card, node = why(plane, "gpus/GPU-b"), why(plane, "nodes/gpu-a")
    assert card["state"] == "unknown" and card["smallest_change"]["code"] == "online"
    assert "(it cannot be judged: its node is offline)" in card["summary"]
    assert node["summary"].startswith("gpu-a takes no new work: the node is offline; its cards are unknown since 20")
    agent.beat(**UNCHANGED)
    wait_until(lambda: why(plane, "gpus/GPU-b")["state"] == "ok", "it is back")


def test_what_a_node_tells_of_a_well_card_is_said(fleet: tuple[Plane, Agent]) -> None:
    plane, agent = fleet
    text = "a row of its memory could not be remapped: have the card replaced"
    agent.beat(**UNCHANGED, gpu_notes=[{"uuid": "GPU-b", "code": "remap_failed", "text": text}])
    assert why(plane, "gpus/GPU-b")["summary"] == f"Card GPU-b of gpu-a is well and free; its node tells of it: {text}."
    assert why(plane, "gpus/GPU-a")["summary"] == "Card GPU-a of gpu-a is well and free."
    shown = plane.operator("GET", f"{API}/nodes/gpu-a").body["warnings"]
    assert shown == [{"code": "gpu_remap_failed", "detail": f"Card GPU-b: {text}."}]


def test_a_card_in_mig_mode_is_no_whole_card(fleet: tuple[Plane, Agent]) -> None:
    plane, agent = fleet
    agent.beat(**UNCHANGED, gpu_capabilities=[{"uuid": "GPU-b", "mig_capable": True}])
    card = why(plane, "gpus/GPU-b")
    assert not card["fits"] and card["summary"] == (
        "Card GPU-b of gpu-a is well, but in MIG mode, and given in slices only: ask for `slice`, or turn MIG off."
    )
    modes = {one["uuid"]: one["mode"] for one in plane.operator("GET", f"{API}/gpus").body["gpus"]}
    assert modes == {"GPU-a": "whole", "GPU-b": "mig"}


def test_a_card_that_a_task_has(fleet: tuple[Plane, Agent]) -> None:
    plane, agent = fleet
    body = {"name": "t", "id": "t1", "image": "a/b:1", "gpus": {"count": 1, "uuids": ["GPU-b"]}}
    assert plane.operator("POST", f"{API}/tasks", body).status == 201
    wait_until(lambda: plane.operator("GET", f"{API}/tasks/t1").body["status"] == "scheduled", "it is placed")
    card = why(plane, "gpus/GPU-b")
    assert card["summary"] == "Card GPU-b of gpu-a is well, but held by task t1."
    claim = {
        "node_id": "gpu-a",
        "attempt": 1,
        "claim_token": "token-0001",
        "from_status": "scheduled",
        "status": "running",
    }
    assert plane.call("PUT", f"{API}/tasks/t1", claim, agent.headers).status == 200
    for _ in range(3):
        agent.beat(**UNCHANGED, **LOST)
    assert "card GPU-b is lost since 20" in why(plane, "tasks/t1")["summary"], "it runs on, and why says it"
    assert plane.operator("DELETE", f"{API}/tasks/t1?force=true").status == 204
