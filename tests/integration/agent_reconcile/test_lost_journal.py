"""Journals that are lost or cannot be written, under real agents with real containers."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agent_tasks.agent_bench import BIN, Agent, Plane
from tests.integration.bad_input.places import fill, small_disk
from tests.integration.waiting import until
from tests.lab import engine
from tests.lab.process import run


def status(agent: Agent) -> dict[str, Any]:
    """What the agent says of itself; nothing while it is being written."""
    try:
        return dict(json.loads((agent.folder / "state" / "status.json").read_bytes()))
    except ValueError:
        return {}


def aside(agent: Agent) -> list[str]:
    return [str(one["why"]) for one in (status(agent).get("journal") or {}).get("set_aside") or ()]


def held(agent: Agent) -> set[str]:
    return {str(task["task_id"]) for task in status(agent).get("tasks") or ()}


def journal(agent: Agent) -> Path:
    return agent.folder / "state" / "journal.db"


def empty(path: Path) -> None:
    path.write_bytes(b"")


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def noise(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


@pytest.mark.case("FC-009")
def test_an_agent_with_a_bad_state_file_starts_and_goes_on(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    """A state file of no bytes stopped the client for good; a single container that was gone did, too."""
    agent = make_agent(reconcile_interval_s=1)
    stays, goes = agent.submit("on-term", "0", "forever"), agent.submit("forever")
    containers = {task_id: agent.running(task_id)["Id"] for task_id in (stays, goes)}
    for task_id in containers:
        plane.phase(task_id, "running")
    for number, damage in enumerate((empty, half, noise)):
        agent.stop()
        damage(journal(agent))
        began = agent.log.stat().st_size
        agent.start()
        wanted = number + 1
        until("it says so", lambda wanted=wanted: len(aside(agent)) == wanted)
        until("both are held again", lambda: held(agent) == set(containers))
        said = agent.log.read_text()[began:]
        assert said.count("it was set aside as journal.db.broken-") == 1, "one clear line"
        assert {task_id: agent.running(task_id)["Id"] for task_id in containers} == containers
    agent.kill()
    engine.docker("rm", "-f", containers[goes])
    agent.start()
    assert plane.ended(goes)["reason"] == "lost_container"
    plane.stop_task(stays)
    ended = plane.ended(stays)
    assert (ended["reason"], ended["exit_code"], ended["attempt"]) == ("stopped_by_operator", 0, 1)
    assert len(list((agent.folder / "state").glob("journal.db.broken-*"))) >= 3, "nothing of them is deleted"


@pytest.mark.case("FC-009")
def test_one_bad_record_hides_no_good_one(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    import sqlite3

    agent = make_agent(reconcile_interval_s=1)
    tasks = [agent.submit("sleep", "3", "exit", str(code)) for code in (3, 4, 5)]
    for task_id in tasks:
        agent.running(task_id)
        plane.phase(task_id, "running")
    agent.kill()
    connection = sqlite3.connect(journal(agent))
    with connection:
        connection.execute("UPDATE claims SET body = '{' WHERE task_id = ?", (tasks[1],))
    connection.close()
    agent.start()
    assert [plane.ended(task_id)["exit_code"] for task_id in tasks] == [3, 4, 5]
    assert aside(agent) == [], "the file itself is good"


def test_a_lost_journal_and_a_server_that_is_away_give_no_extra_time(
    plane: Plane, make_agent: Callable[..., Agent]
) -> None:
    """What runs is taken over from its labels alone, and its time limit goes on."""
    agent = make_agent()
    task_id = agent.submit("ignore-term", "forever", timeout_s=8, stop_grace_s=0)
    container = agent.running(task_id)["Id"]
    plane.phase(task_id, "running")
    agent.kill()
    for path in (agent.folder / "state").glob("journal.db*"):
        path.unlink()
    agent.proxy.rule = lambda method, path, body: 503
    agent.start()
    until("its time is up", lambda: not engine_state(container)["Running"])
    assert plane.task(task_id)["status"] == "running", "nobody could tell the server yet"
    agent.proxy.rule = lambda method, path, body: None
    ended = plane.ended(task_id)
    assert (ended["status"], ended["reason"], ended["exit_code"], ended["attempt"]) == ("failed", "timeout", 124, 1)
    agent.gone(task_id)


def engine_state(container: str) -> dict[str, Any]:
    return dict(json.loads(engine.docker("inspect", "-f", "{{json .State}}", container)))


def test_a_full_disk_claims_nothing_and_loses_nothing(
    plane: Plane, make_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    folder = tmp_path / "small"
    (folder / "state").mkdir(parents=True)
    with small_disk(folder / "state", "8m") as disk:
        agent = make_agent(folder, reconcile_interval_s=1)
        task_id = agent.submit("print", "last words", "forever")
        container = agent.running(task_id)["Id"]
        plane.phase(task_id, "running")
        ballast = fill(disk)
        engine.docker("exec", container, "kill", "-USR1", "1")
        until("it says so", lambda: (status(agent).get("journal") or {}).get("fault"))
        late = agent.submit("exit", "0")
        until("it is offered", lambda: plane.task(late)["status"] == "scheduled")
        beats = len(agent.proxy.seen)
        until("some beats pass", lambda: len(agent.proxy.seen) > beats + 5)
        assert plane.task(late)["status"] == "scheduled", "what cannot be written down is not claimed"
        assert plane.task(task_id)["status"] == "running"
        assert not engine_state(container)["Running"], "it stays, although it has ended"
        text = run([str(BIN / "heterofleet-agent"), "status", "--config", str(folder / "agent.yaml")], check=False)
        assert "cannot be written since" in text.stdout
        ballast.unlink()
        ended = plane.ended(task_id)
        assert (ended["reason"], ended["exit_code"], ended["log_tail"]) == ("signalled", 138, "last words\n")
        assert plane.ended(late)["status"] == "completed"
        until("all is well again", lambda: status(agent).get("journal", {}).get("fault") is None)
        until("nothing is left to tell", lambda: status(agent).get("undelivered") == 0)
        agent.stop()


@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_an_agent_that_cannot_write_ends_with_73_and_takes_over_when_it_can(
    plane: Plane, make_agent: Callable[..., Agent], tmp_path: Path, kind: str
) -> None:
    """systemd starts it again and again; what runs is not touched meanwhile."""
    folder = tmp_path / "small"
    (folder / "state").mkdir(parents=True)
    with small_disk(folder / "state", "8m") as disk:
        agent = make_agent(folder, reconcile_interval_s=1)
        task_id = agent.submit("sleep", "2", "exit", "9")
        agent.running(task_id)
        agent.kill()
        ballast = fill(disk) if kind == "full" else None
        if kind == "read-only":
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=20)
        agent.start()
        assert agent._process is not None and agent._process.wait(30) == 73
        assert not list(disk.glob("*broken*")), "the journal is good, and stays where it is"
        if ballast is not None:
            ballast.unlink()
        else:
            subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True, timeout=20)
        agent.start()
        assert plane.ended(task_id)["exit_code"] == 9
        assert aside(agent) == []
        agent.stop()
