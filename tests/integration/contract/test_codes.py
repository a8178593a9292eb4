"""Every problem code that this release raises, reached over HTTP at a server process.

The table is :data:`SCENARIOS`: one function a code (and status, where a code has two). A code that the server's
sources raise and that is in no row fails :func:`test_the_table_is_what_the_sources_raise`; so does one that is
listed as not built and is raised after all.
"""

from __future__ import annotations

import ast
import fcntl
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Optional

import pytest

import runtime.server
from runtime.protocol.problems import CODES, MEDIA_TYPE, TITLES
from tests.integration.contract.live import SERVER, Answer, Live, call, control_plane
from tests.lab.process import wait_for
from tests.lab.simulated_node import SimulatedNode

TASKS = "/api/v1/tasks"
NOT_BUILT = {
    "overloaded": "limits under overload",
    "too_many_requests": "limits under overload",
}
"""Codes of the contract that nothing in this release raises, with the feature that brings them."""

Scenario = Callable[[Live], Answer]
SCENARIOS: dict[tuple[str, int], Scenario] = {}


def reaches(code: str, status: Optional[int] = None) -> Callable[[Scenario], Scenario]:
    def register(scenario: Scenario) -> Scenario:
        SCENARIOS[(code, status if status is not None else CODES[code][0])] = scenario
        return scenario

    return register


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with control_plane("contract-codes") as plane:
        yield Live(plane)


@pytest.mark.parametrize(("code", "status"), SCENARIOS, ids=lambda value: str(value))
def test_the_code_is_answered(live: Live, code: str, status: int) -> None:
    check_problem(live, SCENARIOS[(code, status)](live), code, status)


def check_problem(live: Live, answer: Answer, code: str, status: int) -> None:
    assert (answer.status, answer.code) == (status, code), answer.raw
    assert answer.headers["content-type"] == MEDIA_TYPE
    body = answer.body
    assert body["type"] == f"urn:heterofleet:problem:{code}"
    assert (body["title"], body["status"]) == (TITLES[code], status)
    # Before the database is open nobody knows whose it is; both places say so in the same way.
    assert answer.headers["x-control-plane-id"] == (body["control_plane_id"] or "")
    assert answer.headers["x-revision"].isdigit()
    assert is_sentence(body["detail"]), body["detail"]
    assert (answer.headers.get("retry-after") is not None) == (status == 503)
    for secret in live.secrets():
        assert secret.encode() not in answer.raw


def is_sentence(text: str) -> bool:
    """Several words that end like a sentence; no traceback, no repr of an object."""
    return (
        len(text.split()) >= 4 and text.endswith((".", "?")) and "Traceback" not in text and "object at 0x" not in text
    )


def test_the_table_is_what_the_sources_raise() -> None:
    raised = codes_in_sources()
    reached = {code for code, _ in SCENARIOS}
    assert raised - reached == set(), "raised by the server and reached by no row"
    assert reached - raised == set(), "in the table, and nothing raises it"
    assert raised & set(NOT_BUILT) == set(), "listed as not built, and raised"
    assert raised | set(NOT_BUILT) == set(CODES), "neither raised nor listed as not built"
    pairs = {(code, status) for code in raised for status in CODES[code]}
    assert pairs == set(SCENARIOS)


def codes_in_sources() -> set[str]:
    """Codes that stand in the server's modules as words of their own; the table of routes only describes."""
    found: set[str] = set()
    (folder,) = runtime.server.__path__
    for path in Path(folder).rglob("*.py"):
        if path.parent.name == "contract":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in CODES:
                found.add(node.value)
    return found


# -- 400 -----------------------------------------------------------------------------------------------------------


@reaches("malformed_json")
def _cut_body(live: Live) -> Answer:
    return live.operator("POST", TASKS, b'{"name": "a"')


@reaches("bad_parameter")
def _limit_in_words(live: Live) -> Answer:
    return live.operator("GET", f"{TASKS}?limit=many")


@reaches("node_scope_required")
def _all_tasks_with_the_system_key(live: Live) -> Answer:
    return live.agent(live.node("scope"), "GET", f"{TASKS}?node_id=scope")


@reaches("unknown_arch")
def _another_architecture(live: Live) -> Answer:
    return call(live.url, "GET", "/static/agent?arch=riscv64")


# -- 401, 403 ------------------------------------------------------------------------------------------------------


@reaches("bad_api_key")
def _another_servers_key(live: Live) -> Answer:
    return call(live.url, "GET", "/api/v1/agent/preflight", headers={"X-API-Key": "another-servers-key-1"})


@reaches("bad_token")
def _no_token(live: Live) -> Answer:
    return call(live.url, "GET", "/api/v1/nodes", headers={"Authorization": "Bearer hft_never-made"})


@reaches("agent_key_not_allowed")
def _agent_creates_a_task(live: Live) -> Answer:
    return live.agent(live.node("creator"), "POST", TASKS, {"name": "a", "image": "app:1"})


@reaches("operator_token_not_allowed")
def _operator_pulls_like_an_agent(live: Live) -> Answer:
    return live.operator("GET", "/api/v1/agent/pending?node_id=scope")


@reaches("role_not_allowed")
def _viewer_creates_a_task(live: Live) -> Answer:
    return live.operator("POST", TASKS, {"name": "a", "image": "app:1"}, role="viewer")


@reaches("node_scope_mismatch")
def _another_nodes_tasks(live: Live) -> Answer:
    return live.agent(live.node("nosy"), "GET", f"{TASKS}?node_id=other&status=running")


@reaches("instance_mismatch")
def _another_instance(live: Live) -> Answer:
    return live.agent(live.node("cloned"), "GET", "/api/v1/agent/pending", X_Instance_Id=str(uuid.uuid4()))


# -- 404, 405 ------------------------------------------------------------------------------------------------------


@reaches("task_not_found")
def _no_such_task(live: Live) -> Answer:
    return live.operator("GET", f"{TASKS}/never-created")


@reaches("node_not_found")
def _no_such_node(live: Live) -> Answer:
    return live.operator("GET", "/api/v1/nodes/never-seen")


@reaches("gpu_not_found")
def _no_such_card(live: Live) -> Answer:
    return live.operator("GET", "/api/v1/gpus/GPU-none")


@reaches("request_not_found")
def _no_such_instruction(live: Live) -> Answer:
    return live.operator("GET", f"/api/v1/image-requests/{uuid.uuid4()}")


@reaches("agent_build_missing")
def _no_build(live: Live) -> Answer:
    return call(live.url, "GET", "/static/agent?arch=arm64")


@reaches("route_not_found")
def _no_such_path(live: Live) -> Answer:
    return live.operator("GET", "/api/v1/taskz")


@reaches("method_not_allowed")
def _another_method(live: Live) -> Answer:
    answer = live.operator("PATCH", f"{TASKS}/one", {})
    assert answer.headers["allow"]
    return answer


# -- 409 -----------------------------------------------------------------------------------------------------------


def running(live: Live, name: str, **task: object) -> tuple[SimulatedNode, str]:
    """A node of this name that has claimed the task of this name: (node, claim token)."""
    node = live.node(name, cards=1)
    live.create(name, node_id=name, **task)
    wait_for(f"{name} is scheduled", lambda: bool(node.scheduled()), 40)
    token, (status, body) = node.claim(name, 1)
    assert status == 200, body
    return node, token


def report(live: Live, node: SimulatedNode, token: str, source: str, target: str, **more: object) -> Answer:
    body = {"node_id": node.node_id, "attempt": 1, "claim_token": token, "from_status": source, "status": target}
    return live.agent(node, "PUT", f"{TASKS}/{node.node_id}", {**body, **more})


@reaches("state_conflict")
def _second_claim(live: Live) -> Answer:
    node, _ = running(live, "conflict")
    answer = report(live, node, uuid.uuid4().hex, "scheduled", "running")
    assert answer.body["claim_token_matches"] is False
    return answer


@reaches("illegal_transition", 409)
def _completed_with_exit_code_3(live: Live) -> Answer:
    node, token = running(live, "forbidden")
    return report(live, node, token, "running", "completed", exit_code=3)


@reaches("illegal_transition", 422)
def _back_from_the_end(live: Live) -> Answer:
    node, token = running(live, "never")
    return report(live, node, token, "completed", "running")


@reaches("task_exists")
def _same_id_another_body(live: Live) -> Answer:
    live.create("twice", priority=1)
    return live.operator("POST", TASKS, {"id": "twice", "name": "twice", "image": "app:1", "priority": 2})


@reaches("log_offset")
def _log_with_a_gap(live: Live) -> Answer:
    node, token = running(live, "gap")
    chunk = {"attempt": 1, "claim_token": token, "from": 10, "to": 12, "data": "ab", "dropped": 0}
    answer = live.agent(node, "POST", f"{TASKS}/gap/logs", chunk)
    assert answer.body["held_end"] == 0
    return answer


def beat(live: Live, node: SimulatedNode) -> Answer:
    """The node's next heartbeat, with the whole answer."""
    kept: list[Answer] = []
    node.call = lambda method, path, body=None, *rest: kept.append(live.agent(node, method, path, body)) or (0, None)  # type: ignore[method-assign,func-returns-value]
    node.beat()
    del node.call  # type: ignore[method-assign]
    return kept[0]


@reaches("node_id_in_use")
def _second_machine_under_one_id(live: Live) -> Answer:
    live.node("wanted")
    answer = beat(live, SimulatedNode(live.url, live.plane.key, "wanted"))
    assert answer.body["holder"]["hostname"] == "wanted"
    return answer


@reaches("instance_cloned")
def _one_instance_on_two_machines(live: Live) -> Answer:
    first = live.node("original")
    copy = SimulatedNode(live.url, live.plane.key, "copy")
    copy.instance_id = first.instance_id
    return beat(live, copy)


@reaches("stale_run")
def _an_older_run(live: Live) -> Answer:
    node = SimulatedNode(live.url, live.plane.key, "rerun")
    node.run = 5
    assert beat(live, node).status == 200
    node.run = 4
    answer = beat(live, node)
    assert answer.body["known_run"] == 5
    return answer


@reaches("cards_not_allocated")
def _wakes_before_its_cards(live: Live) -> Answer:
    node, token = running(live, "sleeper", gpus={"count": 1, "vendor": "nvidia"})
    assert live.operator("POST", f"{TASKS}/sleeper/sleep").status == 202
    assert report(live, node, token, "running", "sleeping").status == 200
    # Asked to run again, but its card was given to another task meanwhile.
    live.create("awake", node_id="sleeper", gpus={"count": 1, "vendor": "nvidia"})
    wait_for("the other task has the card", lambda: bool(node.scheduled()), 40)
    assert live.operator("POST", f"{TASKS}/sleeper/wake").status == 202
    return report(live, node, token, "sleeping", "running")


@reaches("card_in_use")
def _cuts_a_card_that_a_task_has(live: Live) -> Answer:
    running(live, "holder", gpus={"count": 1, "vendor": "nvidia"})
    cut = {"vendor": "nvidia-mig", "op": "create", "gpu_uuid": "GPU-holder-0", "profiles": [{"name": "1g.10gb"}]}
    answer = live.operator("POST", "/api/v1/slice-requests", {"node_id": "holder", **cut})
    assert answer.body["held_by"] == ["task holder"]
    return answer


@reaches("not_running")
def _stops_what_has_ended(live: Live) -> Answer:
    node, token = running(live, "over")
    assert report(live, node, token, "running", "completed", exit_code=0).status == 200
    return live.operator("POST", f"{TASKS}/over/stop")


@reaches("node_online")
def _deletes_a_node_that_is_there(live: Live) -> Answer:
    live.node("present")
    return live.operator("DELETE", "/api/v1/nodes/present")


@reaches("node_has_tasks")
def _deletes_a_node_with_work(live: Live) -> Answer:
    node, _ = running(live, "busy")
    assert node.beat(leaving=True)[0] == 200
    wait_for(
        "the node is offline",
        lambda: live.operator("GET", "/api/v1/nodes/busy").body["state"] == "offline" or "not yet",
        15,
    )
    return live.operator("DELETE", "/api/v1/nodes/busy")


# -- 413 to 422 ----------------------------------------------------------------------------------------------------


@reaches("body_too_large")
def _nine_mib(live: Live) -> Answer:
    return live.operator("POST", TASKS, b'{"name": "' + b"a" * (9 << 20) + b'"}')


@reaches("unsupported_media_type")
def _a_form(live: Live) -> Answer:
    return live.operator("POST", TASKS, b"name=a", **{"Content-Type": "application/x-www-form-urlencoded"})


@reaches("invalid_task")
def _unknown_member(live: Live) -> Answer:
    answer = live.operator("POST", TASKS, {"name": "a", "imagee": "app:1"})
    assert "image" in {error["wanted"].split()[-1] for error in answer.body["errors"]}
    return answer


@reaches("invalid_heartbeat")
def _beat_without_a_run(live: Live) -> Answer:
    node = live.node("dumb")
    body = {"protocol": 1, "node_id": "dumb", "instance_id": node.instance_id, "seq": 2}
    answer = live.agent(node, "POST", "/api/v1/agent/heartbeat", body)
    assert "run" in {error["path"] for error in answer.body["errors"]}
    return answer


@reaches("invalid_node_id")
def _capital_letters(live: Live) -> Answer:
    return live.agent(live.node("small"), "GET", "/api/v1/agent/pending", X_Node_Id="Small_One")


@reaches("vendor_required")
def _two_vendors(live: Live) -> Answer:
    for vendor in ("nvidia", "hygon"):
        node = SimulatedNode(live.url, live.plane.key, f"of-{vendor}")
        card = {"uuid": f"card-{vendor}", "vendor": vendor, "index": 0, "memory_total_mib": 1000}
        assert node.beat(gpus=[card])[0] == 200
    return live.operator("POST", TASKS, {"name": "a", "image": "app:1", "gpus": {"count": 1}})


# -- 503, on control planes of their own ---------------------------------------------------------------------------


@reaches("starting")
def _while_the_schema_is_brought_up(live: Live) -> Answer:
    with control_plane("contract-starting", start=False) as plane:
        plane.prepare()
        with (plane.state_dir / "heterofleet.db.migrating").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as another process that migrates
            plane._daemon.start(
                *([SERVER, "server", "run", "--config", str(plane.settings_file)], lambda: answers(plane.url))
            )
            answer = call(plane.url, "GET", "/api/v1/nodes")
            fcntl.flock(lock, fcntl.LOCK_UN)
        wait_for("the server is ready", plane.ready, 30)
        return answer


@reaches("database_busy")
def _while_another_process_holds_the_database(live: Live) -> Answer:
    with control_plane("contract-busy") as plane:
        other = Live(plane)
        holder = sqlite3.connect(plane.state_dir / "heterofleet.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        answer = other.operator("POST", TASKS, {"id": "late", "name": "late", "image": "app:1"})
        # Reading goes on meanwhile, and nothing of the refused change is there.
        assert other.operator("GET", f"{TASKS}/late").code == "task_not_found"
        holder.execute("ROLLBACK")
        holder.close()
        other.create("late")
        return answer


@reaches("database_rolled_back")
def _after_an_older_database_was_put_back(live: Live) -> Answer:
    with control_plane("contract-restored") as plane:
        other = Live(plane)
        node = other.node("witness")
        assert node.beat(seen_revision=1_000_000)[0] == 200
        return other.agent(node, "GET", f"{TASKS}/of-the-lost-time")


def answers(url: str) -> object:
    try:
        return call(url, "GET", "/healthz").status == 200 or "not yet"
    except OSError as error:
        return str(error)
