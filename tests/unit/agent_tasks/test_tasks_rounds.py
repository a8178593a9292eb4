"""A round over many containers, with a server that does not answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.agent.drivers.driver import EngineFacts, Seen
from runtime.agent.link.errors import Unavailable
from runtime.agent.tasks.engines import Engine
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.parts import Claims
from runtime.agent.tasks.reconcile import Decision
from runtime.agent.tasks.records import ClaimRecord, Key, Stage
from runtime.agent.tasks.rounds import Rounds
from runtime.agent.tasks.takeover import Takeover
from runtime.agent.tasks.zombies import ServerWord
from runtime.protocol.states import Driver, Status
from runtime.protocol.tasks import Task, TaskSpec


def box(number: int, state: str = "running") -> Seen:
    labels = {
        "heterofleet.control-plane": "cp", "heterofleet.node": "n", "heterofleet.instance": "old",
        "heterofleet.task": f"t{number}", "heterofleet.uid": f"u{number}", "heterofleet.attempt": "1",
        "heterofleet.claim": "c",
    }  # fmt: skip
    return Seen(f"{number:064d}", f"task-t{number}", state, labels, 0.0)


def stub_parts(instance_id: str, list_own: Callable[[], list[Seen]], task: Callable[[str, Any], Any]) -> Any:
    """What a round needs of an agent: its list of containers, and the server's word on a task."""
    journal: Any = SimpleNamespace(fact=lambda name: None, save_fact=lambda *fact: None, prune=lambda days: None)
    docker: Any = SimpleNamespace(list_own=list_own, engine=lambda: EngineFacts("e", "20.10"), wall=lambda: 0.0)
    return SimpleNamespace(
        client=SimpleNamespace(task=task, control_plane_id="cp"),
        drivers={Driver.DOCKER: Engine(Driver.DOCKER, docker, journal, 60.0)},
        journal=journal,
        identity=SimpleNamespace(node_id="n", instance_id=instance_id, booted=False, former_node_ids=[]),
        settings=SimpleNamespace(outbox_keep_days=30),
        clock=lambda: 1000.0,
        wall=lambda: 1000.0,
        proven=True,
    )


def test_a_server_that_hangs_is_asked_once_a_round() -> None:
    """The journal was lost with 50 containers and the server hung: half a minute each, until the watchdog came."""
    asked: list[str] = []

    def hang(task_id: str, token: Any) -> Any:
        asked.append(task_id)
        raise Unavailable("no answer in 30 s")

    parts = stub_parts("new", lambda: [box(number) for number in range(50)], hang)
    intents: Any = SimpleNamespace(named=lambda key: False, unaccounted=list)
    way: Any = SimpleNamespace(sweep=list)
    rounds = Rounds(parts, Claims(), way, intents, ServerWord())
    rounds.reconcile()
    assert len(asked) == 1
    rounds.reconcile()
    assert len(asked) == 2


def test_a_container_that_is_younger_than_the_list_is_not_lost() -> None:
    """It was made while the list was: the claim said that it runs, the list knew nothing of it, and the task failed
    with lost_container while its program ran."""
    claims, ends = Claims(), []
    record = ClaimRecord(Key("u1", 1), "t1", "cp", "c", Stage.CLAIMED, TaskSpec(name="t1"))
    held = Held(record)
    claims.add(held)

    def list_own() -> list[Seen]:
        found: list[Seen] = []
        held.record = dataclasses.replace(held.record, stage=Stage.RUNNING, container_id="1" * 64)
        return found

    there = Task("t1", "u1", Status.RUNNING, 1, node_id="n")
    parts = stub_parts("i", list_own, lambda task_id, token: there)
    intents: Any = SimpleNamespace(named=lambda key: True, unaccounted=list)
    way: Any = SimpleNamespace(sweep=list, lost=ends.append, advance=lambda held: None)
    rounds = Rounds(parts, claims, way, intents, ServerWord())
    rounds.reconcile()
    assert ends == []
    parts.drivers[Driver.DOCKER].driver.list_own = list
    for _ in range(2):  # an empty list is believed when it comes twice
        rounds.reconcile()
    assert ends == [held], "one that had started before the list, and is not in it, is gone"


@pytest.mark.parametrize(("state", "stage", "known"), [("created", "claimed", False), ("running", "starting", True)])
def test_what_was_not_started_when_the_journal_was_lost_is_checked_again(state: str, stage: str, known: bool) -> None:
    """It would have been started without a look at what lies at its mount sources now."""
    saved: list[ClaimRecord] = []
    parts: Any = SimpleNamespace(
        identity=SimpleNamespace(node_id="n", instance_id="old", booted=False, former_node_ids=[]),
        journal=SimpleNamespace(save=saved.append, letter=lambda key: None),
        clock=lambda: 0.0,
    )
    claims, moved = Claims(), []
    way: Any = SimpleNamespace(advance=moved.append)
    nobody: Any = SimpleNamespace()
    docker: Any = SimpleNamespace(name=Driver.DOCKER)
    Takeover(parts, claims, way, nobody).take(docker, box(1, state), None, Decision.RECLAIM)
    (held,) = claims.all()
    assert (moved, saved) == ([held], [held.record])
    assert (held.record.stage.value, held.record.container_id is not None, held.maybe_made) == (stage, known, not known)
