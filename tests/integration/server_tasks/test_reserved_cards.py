"""A slice request holds its card from the request to its end, against tasks and other requests."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from runtime.protocol.times import now
from runtime.server.services import instructions as service
from runtime.server.services.placement import round as placement
from runtime.server.services.placement import snapshot
from runtime.server.services.placement.decide import decide
from runtime.server.store.tables import gpu_allocations
from tests.integration.server_tasks.conftest import Plane, eventually
from tests.lab.simulated_node import SimulatedNode

CARD = "GPU-gpu-a-0"
CREATE = {
    "node_id": "gpu-a",
    "vendor": "nvidia-mig",
    "op": "create",
    "gpu_uuid": CARD,
    "profiles": [{"name": "1g.10gb"}],
}
DESTROY = {**CREATE, "op": "destroy", "profiles": [], "instances": [{"gi_id": 7}]}


def ask(plane: Plane, body: dict[str, Any] = CREATE) -> tuple[int, dict[str, Any]]:
    status, answer = plane.call("POST", "/api/v1/slice-requests", body)
    return status, dict(answer)


def put(node: SimulatedNode, made: dict[str, Any], source: str, target: str) -> int:
    body = {"node_id": "gpu-a", "claim_token": "token-1234", "from_status": source, "status": target}
    return node.call("PUT", f"/api/v1/agent/slice-requests/{made['id']}", body)[0]


def sliced(plane: Plane) -> None:
    """A node whose only card is cut into two."""
    node = plane.node(cards=1)
    half = {"vendor": "nvidia", "parent_uuid": CARD, "profile": "1g.10gb", "ci_id": 0}
    gpus = [{"uuid": CARD, "vendor": "nvidia"}, *({**half, "uuid": f"MIG-{gi}", "gi_id": gi} for gi in (7, 8))]
    assert node.beat(gpus=gpus)[0] == 200


def no_more_rounds(plane: Plane) -> None:
    assert plane.parts.background is not None
    plane.parts.background._rounds.stop()
    plane.parts.background._rounds.join(40)


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled", "expired"])
def test_nobody_gets_the_card_of_a_slice_request_before_it_is_over(any_plane: Plane, end: str) -> None:
    node = any_plane.node(cards=1)
    status, made = ask(any_plane)
    assert status == 201
    any_plane.create("t1", gpus={"count": 1})
    (there,) = any_plane.get("/api/v1/tasks/t1/why")["nodes"]
    (free,) = [one for one in there["constraints"] if one["code"] == "free"]
    assert (free["ok"], free["evidence"][0]["held_by"]) == (False, [f"slice request {made['id']}"])
    assert any_plane.get(f"/api/v1/gpus/{CARD}")["allocated_to"] == []
    status, refusal = ask(any_plane)
    assert (status, refusal["code"], refusal["held_by"]) == (409, "card_in_use", [f"slice request {made['id']}"])
    if end in ("succeeded", "failed"):
        assert put(node, made, "pending", "running") == 200
        assert any_plane.task("t1")["status"] == "pending"
        assert put(node, made, "running", end) == 200
    elif end == "cancelled":
        assert any_plane.call("POST", f"/api/v1/slice-requests/{made['id']}/cancel")[0] == 202
    else:
        assert any_plane.parts.db.write(lambda tx: service.expire(tx, now() + timedelta(hours=1))) == 1
    any_plane.scheduled(node, "t1")


def test_a_card_that_a_task_holds_is_not_cut(any_plane: Plane) -> None:
    node = any_plane.node(cards=2)
    any_plane.running(node, "t1", gpus={"count": 1, "uuids": [CARD]})
    status, refusal = ask(any_plane)
    assert (status, refusal["code"], refusal["held_by"]) == (409, "card_in_use", ["task t1"])
    assert any_plane.get("/api/v1/slice-requests")["requests"] == [], "what was refused is not queued"
    assert ask(any_plane, {**CREATE, "gpu_uuid": "GPU-gpu-a-1"})[0] == 201


def test_slices_that_are_used_stay_while_others_are_made_and_are_not_destroyed(plane: Plane) -> None:
    sliced(plane)
    plane.create("t1", gpus={"count": 1, "slice": "1g.10gb", "uuids": ["MIG-7"]})
    eventually("t1 is placed", lambda: plane.task("t1")["status"] == "scheduled", 40)
    assert ask(plane, DESTROY)[1]["code"] == "card_in_use"
    assert ask(plane, {**DESTROY, "instances": [{"gi_id": 7, "ci_id": 0}]})[1]["code"] == "card_in_use"
    status, made = ask(plane, {**DESTROY, "instances": [{"gi_id": 8}]})
    assert status == 201
    plane.create("t2", gpus={"count": 1, "slice": "1g.10gb"})
    (there,) = plane.get("/api/v1/tasks/t2/why")["nodes"]
    assert [one["code"] for one in there["constraints"] if not one["ok"]] == ["free"]
    assert plane.call("POST", f"/api/v1/slice-requests/{made['id']}/cancel")[0] == 202
    assert ask(plane)[0] == 201, "a further slice of the same kind changes no mode"


def test_a_round_that_decided_before_the_request_gives_the_card_to_nobody(plane: Plane) -> None:
    sliced(plane)
    no_more_rounds(plane)
    plane.create("t1", gpus={"count": 1, "slice": "1g.10gb"})
    with plane.parts.db.read() as connection:
        before = snapshot.read(connection, now())
    assert ask(plane)[0] == 201
    views = plane.parts.presence.views()
    made = decide(before.candidates, before.sites(views, 4))
    assert [one.candidate.task_id for one in made] == ["t1"]
    assert plane.parts.db.write(lambda tx: placement._apply_all(tx, made, now())) == 0
    assert len(plane.rows(sa.select(gpu_allocations))) == 1
