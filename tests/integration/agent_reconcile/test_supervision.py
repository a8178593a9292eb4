"""Who watches a container: after a restart, beside another agent, and when its time is up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from tests.integration.agent_tasks.agent_bench import Agent, Plane
from tests.integration.waiting import until
from tests.lab import engine

CARD = {"gpus": {"count": 1, "vendor": "virtual"}}


def cards_of(plane: Plane, agent: Agent) -> list[Any]:
    status, node = plane.call("GET", f"/nodes/{agent.node_id}")
    assert status == 200, node
    return [holder for card in node["gpus"] or () for holder in card["allocated_to"]]


@pytest.mark.case("FC-008")
@pytest.mark.parametrize("back", ["before the end", "after the end"])
def test_after_a_restart_somebody_waits_for_the_container(
    plane: Plane, make_agent: Callable[..., Agent], back: str
) -> None:
    """The watcher lived in the process that was replaced: the task was running for ever, its exit code and last lines
    lost, its card never free."""
    agent = make_agent()
    until("it has a card", lambda: plane.call("GET", f"/nodes/{agent.node_id}")[1]["gpus"])
    task_id = agent.submit("print", "first", "sleep", "4", "print", "last", "exit", "0", **CARD)
    container = agent.running(task_id)["Id"]
    plane.phase(task_id, "running")
    assert len(cards_of(plane, agent)) == 1
    agent.kill()
    if back == "after the end":
        engine.docker("wait", container)
    agent.start()
    ended = plane.ended(task_id)
    assert (ended["status"], ended["exit_code"], ended["attempt"]) == ("completed", 0, 1)
    assert ended["log_tail"] == "first\nlast\n"
    agent.gone(task_id)
    until("its card is free", lambda: cards_of(plane, agent) == [])
    assert len(agent.proxy.puts("completed")) == 1, "told once"


@pytest.mark.case("FC-006")
def test_two_agents_on_one_engine_leave_each_others_containers_alone(
    plane: Plane, make_agent: Callable[..., Agent]
) -> None:
    """The second took the first one's containers for orphans of its own and deleted them."""
    first = make_agent(reconcile_interval_s=1)
    task_id = first.submit("on-term", "0", "forever")
    container = first.running(task_id)["Id"]
    plane.phase(task_id, "running")
    began = int(time.time())
    second = make_agent(reconcile_interval_s=1)
    for answer in (403, 404):
        second.proxy.rule = lambda method, path, body, answer=answer: answer if f"/tasks/{task_id}" in path else None
        seen = len(second.proxy.seen)
        until("several of its rounds pass", lambda seen=seen: len(second.proxy.seen) > seen + 5)
    # Its own work goes on beside.
    assert plane.ended(second.submit("exit", "3"))["exit_code"] == 3
    told = [entry["container_id"] for method, _, body in second.proxy.seen if method == "POST" and body
            for entry in body.get("foreign") or ()]  # fmt: skip
    assert container in told, "it is said that it is there, and which cards it holds"
    calls = engine.docker("events", "--since", str(began), "--until", str(int(time.time()) + 1), "--filter",
                          f"container={container}", "--format", "{{.Action}}").split()  # fmt: skip
    assert not {"kill", "stop", "die", "destroy", "pause", "restart"} & set(calls), calls
    assert first.running(task_id)["Id"] == container
    plane.stop_task(task_id)
    assert plane.ended(task_id)["exit_code"] == 0


@pytest.mark.case("FC-050")
@pytest.mark.case("FC-075")
def test_the_watchdog_ends_the_container_itself_politely_first_and_in_time(
    plane: Plane, make_agent: Callable[..., Agent]
) -> None:
    """Its limit hit the client and not the container, which ran on; or it was killed outright in the middle of work on
    the card. A restart of the agent in between gives no extra time."""
    agent = make_agent()
    began = int(time.time())
    task_id = agent.submit("ignore-term", "forever", timeout_s=10, stop_grace_s=1)
    container = agent.running(task_id)
    assert container["HostConfig"]["Init"] is True
    plane.phase(task_id, "running")
    until("three of its ten seconds are over", lambda: age_s(container["State"]["StartedAt"]) > 3)
    agent.kill()
    agent.proxy.rule = lambda method, path, body: 503 if method == "PUT" else None
    agent.start()
    until("it has ended", lambda: not state(container["Id"])["Running"])
    ran = moment(state(container["Id"])["FinishedAt"]) - moment(container["State"]["StartedAt"])
    # Its time begins with its first process, which the engine makes before it calls it started.
    assert ran.total_seconds() >= 9.5, "it had its time, and its grace"
    agent.proxy.rule = lambda method, path, body: None
    ended = plane.ended(task_id)
    assert (ended["status"], ended["reason"], ended["exit_code"]) == ("failed", "timeout", 124)
    agent.gone(task_id)
    signals = engine.docker("events", "--since", str(began), "--until", str(int(time.time()) + 1), "--filter",
                            "event=kill", "--filter", f"container={container['Id']}", "--format",
                            "{{.Actor.Attributes.signal}}")  # fmt: skip
    assert signals.split() == ["15", "9"]
    assert "removed by force" not in agent.log.read_text()


def state(container: str) -> dict[str, Any]:
    return dict(json.loads(engine.docker("inspect", "-f", "{{json .State}}", container)))


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text[:26].rstrip("Z") + "+00:00")


def age_s(started: str) -> float:
    return time.time() - moment(started).timestamp()
