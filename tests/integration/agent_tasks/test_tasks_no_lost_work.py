"""Answers that are lost, agents that are killed, servers that are away."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.agent_tasks.agent_bench import Agent, Plane
from tests.integration.waiting import until
from tests.lab import engine
from tests.lab.process import run


def is_claim(method: str, body: Any) -> bool:
    return method == "PUT" and body.get("from_status") == "scheduled"


def is_report(method: str, body: Any) -> bool:
    return method == "PUT" and body.get("from_status") == "running"


@pytest.mark.case("FC-001")
def test_a_claim_whose_answer_was_lost_goes_on(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    """The claim was stored, its answer lost, the repetition refused: the work stayed "running" with nobody there."""
    agent = make_agent()
    lost: list[Any] = []

    def lose_first(method: str, path: str, body: Any) -> str | None:
        if is_claim(method, body) and not lost:
            lost.append(body)
            return "drop"
        return None

    agent.proxy.rule = lose_first
    task_id = agent.submit("exit", "0", env={"A": "1"})
    assert plane.ended(task_id)["status"] == "completed"
    claims = [body for method, _, body in agent.proxy.seen if method == "PUT" and is_claim(method, body)]
    assert len(claims) == 2
    assert claims[0]["claim_token"] == claims[1]["claim_token"] == lost[0]["claim_token"]
    assert plane.task(task_id)["attempt"] == 1


def test_killed_after_the_claim_was_sent(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    agent = make_agent()
    agent.proxy.rule = lambda method, path, body: "drop" if is_claim(method, body) else None
    task_id = agent.submit("print", "once", "exit", "0")
    until("the claim is stored", lambda: plane.task(task_id)["status"] == "running")
    agent.kill()
    agent.proxy.rule = lambda method, path, body: None
    agent.start()
    assert plane.ended(task_id)["status"] == "completed"
    assert plane.task(task_id)["log_tail"] == "once\n"


def test_a_container_outlives_its_killed_agent(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    agent = make_agent()
    task_id = agent.submit("forever")
    before = agent.running(task_id)
    plane.phase(task_id, "running")
    agent.kill()
    agent.start()
    plane.phase(task_id, "running")
    assert agent.running(task_id)["Id"] == before["Id"]
    # Its end may take the command along that brings it about.
    run(["docker", "exec", before["Id"], "kill", "-USR1", "1"], check=False)
    task = plane.ended(task_id)
    assert (task["status"], task["exit_code"], task["reason"]) == ("failed", 138, "signalled")


def test_an_end_while_the_agent_is_away_is_reported(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    agent = make_agent()
    task_id = agent.submit("sleep", "2", "exit", "7")
    container = agent.running(task_id)["Id"]
    agent.kill()
    engine.docker("wait", container)
    agent.start()
    task = plane.ended(task_id)
    assert (task["status"], task["exit_code"]) == ("failed", 7)
    agent.gone(task_id)


def test_a_restart_gives_no_extra_time(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    agent = make_agent()
    task_id = agent.submit("ignore-term", "forever", timeout_s=4, stop_grace_s=0)
    agent.running(task_id)
    plane.phase(task_id, "running")
    for _ in range(2):
        agent.kill()
        agent.start()
        plane.phase(task_id, "running")
    assert plane.ended(task_id)["reason"] == "timeout"
    assert len(agent.proxy.puts("failed")) == 1
    ran = plane.task(task_id)
    assert ran["exit_code"] == 124


def test_the_container_stays_until_its_end_is_delivered(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    agent = make_agent()
    agent.proxy.rule = lambda method, path, body: 503 if is_report(method, body) else None
    task_id = agent.submit("exit", "5")
    until("three reports were refused", lambda: len(agent.proxy.puts("failed")) >= 3)
    found = agent.container(task_id)
    assert found is not None and found["State"]["Status"] == "exited"
    agent.kill()
    agent.start()
    until("it is tried again after a restart", lambda: len(agent.proxy.puts("failed")) >= 5)
    assert agent.container(task_id) is not None
    assert plane.task(task_id)["status"] == "running"
    agent.proxy.rule = lambda method, path, body: None
    assert plane.ended(task_id)["exit_code"] == 5
    agent.gone(task_id)


@pytest.mark.case("FC-002")
def test_a_report_that_finds_another_end_counts_as_delivered(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    """A late "finished" overwrote an end that was there already. The report's answer is lost, the end is stored:
    the repetition is refused, and that refusal lets the container go."""
    agent = make_agent()
    dropped: list[Any] = []

    def lose_first(method: str, path: str, body: Any) -> str | None:
        if is_report(method, body) and not dropped:
            dropped.append(body)
            return "drop"
        return None

    agent.proxy.rule = lose_first
    task_id = agent.submit("exit", "6")
    first = plane.ended(task_id)
    agent.gone(task_id)
    assert len(agent.proxy.puts("failed")) == 2
    assert plane.task(task_id) == first


def test_a_lost_journal_is_made_up_for_by_the_labels(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    agent = make_agent(reconcile_interval_s=1)
    task_id = agent.submit("on-term", "0", "forever")
    before = agent.running(task_id)["Id"]
    plane.phase(task_id, "running")
    agent.kill()
    for path in (agent.folder / "state").glob("journal.db*"):
        path.unlink()
    agent.start()
    until("it is taken over", lambda: "taken over from its container" in agent.log.read_text())
    assert agent.running(task_id)["Id"] == before
    plane.stop_task(task_id)
    assert plane.ended(task_id)["reason"] == "stopped_by_operator"


def test_a_lost_journal_and_a_lost_container_are_owned_up_to(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    agent = make_agent(reconcile_interval_s=1)
    task_id = agent.submit("forever")
    container = agent.running(task_id)["Id"]
    plane.phase(task_id, "running")
    agent.kill()
    for path in (agent.folder / "state").glob("journal.db*"):
        path.unlink()
    engine.docker("rm", "-f", container)
    agent.start()
    task = plane.ended(task_id)
    assert (task["status"], task["reason"], task["exit_code"]) == ("failed", "end_unknown", None)


def test_a_container_that_was_removed_by_hand_is_lost(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    agent = make_agent(reconcile_interval_s=1)
    keep = agent.submit("forever")
    task_id = agent.submit("forever")
    for one in (keep, task_id):
        agent.running(one)
        plane.phase(one, "running")
    engine.docker("rm", "-f", agent.running(task_id)["Id"])
    task = plane.ended(task_id)
    assert (task["status"], task["reason"]) == ("failed", "lost_container")
    assert agent.running(keep)


def test_a_task_that_was_deleted_by_force_is_stopped(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    agent = make_agent()
    task_id = agent.submit("forever")
    agent.running(task_id)
    status, _ = plane.call("DELETE", f"/tasks/{task_id}?force=true")
    assert status == 204
    until("it is gone after three proofs", lambda: agent.container(task_id) is None, 60)


def test_another_planes_containers_are_foreign(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    agent = make_agent(reconcile_interval_s=1)
    labels = {
        "control-plane": "another",
        "node": agent.node_id,
        "task": "x",
        "uid": "u-1",
        "attempt": "1",
        "claim": "c",
    }
    options = [word for name, value in labels.items() for word in ("--label", f"heterofleet.{name}={value}")]
    options += ["-e", "NVIDIA_VISIBLE_DEVICES=GPU-9"]
    container = engine.docker("run", "-d", *options, "hf-lab/task:1", "forever")

    def told() -> bool:
        entries = [entry for method, _, body in agent.proxy.seen if method == "POST" and body
                   for entry in body.get("foreign") or ()]  # fmt: skip
        return any((entry["container_id"], entry["gpus"]) == (container, ["GPU-9"]) for entry in entries)

    until("the heartbeat tells of it and of its card", told)
    assert engine.docker("inspect", "-f", "{{.State.Running}}", container) == "true"


def test_nothing_listens(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent()
    until("it beats", lambda: any("heartbeat" in path for _, path, _ in agent.proxy.seen))
    sockets = subprocess.run(["ss", "-Hltnup"], capture_output=True, text=True, check=True).stdout
    assert f"pid={agent.pid}," not in sockets
