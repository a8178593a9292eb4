"""Two server processes' worth of parts on one PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.protocol.nodes import CardHealth
from runtime.server.services import leader as leading
from runtime.server.services.leader import Leader
from runtime.server.store.database import Database
from tests.integration.postgres import Postgres
from tests.integration.server_core.plane import FULL, OF_A_COPY, UNCHANGED, Agent, Plane, running, wait_until


@pytest.fixture
def pair(tmp_path: Path, postgres: Postgres) -> Iterator[tuple[Plane, Plane]]:
    with postgres.database() as url, contextlib.ExitStack() as stack:
        yield (
            stack.enter_context(running(tmp_path, database_url=url)),
            stack.enter_context(running(tmp_path, database_url=url)),
        )


def through(plane: Plane, agent: Agent) -> Agent:
    agent.plane = plane
    return agent


def test_both_are_one_control_plane(pair: tuple[Plane, Plane]) -> None:
    first, second = pair
    agent = Agent(first)
    answer = agent.beat(**FULL)
    assert answer.status == 200
    # The other process knows the binding before it has heard the node itself.
    pending = second.call("GET", "/api/v1/agent/pending?node_id=gpu-a", headers=agent.headers)
    assert pending.status == 200
    # For longer than a node may be silent the second process has heard nothing, but the first one has.
    second.parts.presence.started_at -= 3600
    other = Agent(second, instance_id="22222222-aaaa", fingerprint="machine-2")
    assert other.beat(**FULL).code == "node_id_in_use"
    assert through(second, agent).beat(**UNCHANGED).status == 200
    assert second.parts.db.control_plane_id == answer.body["control_plane_id"]


def test_a_node_heard_here_is_seen_there(pair: tuple[Plane, Plane]) -> None:
    first, second = pair
    Agent(first).beat(**FULL)
    wait_until(lambda: second.parts.presence.view("gpu-a") is not None, "the other process sees the node")
    view = second.parts.presence.view("gpu-a")
    assert view is not None
    assert (view.hostname, [gpu.uuid for gpu in view.gpus]) == ("host-a", ["GPU-a", "GPU-b"])


def test_a_copy_that_is_found_out_here_is_forgotten_there(pair: tuple[Plane, Plane]) -> None:
    first, second = pair
    agent = Agent(first)
    agent.beat(**FULL)
    assert through(second, agent).beat(**FULL).status == 200
    copy = Agent(second, boot_id="boot-of-the-copy", run=2)
    for _ in range(4):
        assert copy.beat(**OF_A_COPY).status == 200

    def boot_known_to(plane: Plane) -> str | None:
        view = plane.parts.presence.view("gpu-a")
        return view and view.boot_id

    wait_until(lambda: boot_known_to(first) == copy.boot_id, "the first process has heard of the copy")
    assert through(first, agent).beat(**FULL).status == 200
    wait_until(lambda: boot_known_to(second) == agent.boot_id, "the second process knows who is the copy")
    assert through(second, agent).beat(**FULL).status == 200
    view = second.parts.presence.view("gpu-a")
    assert view is not None
    assert view.card_health == {"GPU-a": CardHealth.OK, "GPU-b": CardHealth.OK}, "not lost, as the copy let it seem"


def test_a_card_that_is_lost_here_is_lost_there(pair: tuple[Plane, Plane]) -> None:
    """Each process hears some of the beats; whichever places tasks must know what the other has concluded."""
    first, second = pair
    agent = Agent(first)
    agent.beat(**FULL)

    def there(health: CardHealth) -> bool:
        view = second.parts.presence.view("gpu-a")
        return view is not None and view.card_health.get("GPU-b") is health

    wait_until(lambda: there(CardHealth.OK), "the other process sees the card")
    for _ in range(3):
        agent.beat(**UNCHANGED, gpu_collect_failures=[{"uuid": "GPU-b", "index": 1, "reason": "GPU is lost"}])
    wait_until(lambda: there(CardHealth.LOST), "the other process knows that it is lost")
    for _ in range(3):
        agent.beat(**UNCHANGED)
    wait_until(lambda: there(CardHealth.OK), "the other process knows that it is back")


def test_a_task_made_here_is_heard_of_there(pair: tuple[Plane, Plane]) -> None:
    first, second = pair
    agent = Agent(first)
    agent.beat(**FULL)
    made = second.operator("POST", "/api/v1/tasks", {"name": "t", "image": "registry/one:1"})
    assert made.status == 201
    for plane in pair:
        through(plane, agent)
        wait_until(
            lambda: [intent["uid"] for intent in agent.beat(**UNCHANGED).body["intents"]] == [made.body["uid"]],
            "the node hears of it",
        )


def test_a_database_that_was_put_back_is_known_to_both(pair: tuple[Plane, Plane]) -> None:
    first, second = pair
    Agent(first).beat(**FULL, seen_revision=10_000)
    wait_until(lambda: second.parts.rollback.active, "the other process knows")


def test_there_is_one_leader(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "RETRY_S", 0)
    with postgres.database() as url:
        databases = [Database(url.replace("postgresql://", "postgresql+psycopg://")) for _ in range(2)]
        first, second = (Leader(database) for database in databases)
        assert [first.leads(), second.leads(), first.leads(), second.leads()] == [True, False, True, False]
        # Whoever is cut off from the database leads no more, and knows.
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        assert second.leads()
        assert not first.leads()
        second.resign()
        assert first.leads()
        first.resign()
        for database in databases:
            database.close()


def test_one_leads_and_the_other_takes_over(pair: tuple[Plane, Plane]) -> None:
    first, second = pair
    leaders = [plane.parts.background._leader for plane in pair if plane.parts.background is not None]
    wait_until(lambda: any(leader.leading for leader in leaders), "one of them leads")
    led = first if leaders[0].leading else second
    rest = second if led is first else first
    led.parts.stop()
    agent = Agent(rest)
    agent.beat(**FULL)
    rest.operator("POST", "/api/v1/tasks", {"name": "t", "image": "registry/one:1"})
    wait_until(lambda: agent.beat(**UNCHANGED).body["intents"], "the other places the task")
