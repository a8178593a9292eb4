"""What the heartbeat says of the engine and of other control planes' containers, and what it leaves out."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.agent.drivers.docker import DockerDriver
from runtime.agent.drivers.docker_answers import facts_of
from runtime.agent.drivers.driver import EngineFacts, Seen
from runtime.agent.drivers.errors import EngineUnavailable
from runtime.agent.hardware.inventory import GpuSnapshot
from runtime.agent.link.seen import SeenRevisions
from runtime.agent.settings import AgentSettings
from runtime.agent.tasks.executor import Executor
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.journal import open_journal
from runtime.agent.tasks.records import ClaimRecord, Key, Stage
from runtime.protocol.states import Driver
from runtime.protocol.tasks import AssignedGpu, TaskSpec

LABELS = {"heterofleet.control-plane": "another", "heterofleet.node": "n", "heterofleet.task": "x"}


class Engine:
    """Containers by id; counts inspections, and refuses the first ``away`` of them."""

    def __init__(self) -> None:
        self.boxes: dict[str, Seen] = {}
        self.inspected: list[str] = []
        self.away = 0
        self.silent = False
        self.traces = True
        self.images = SimpleNamespace(list=list)
        self.wall = time.time

    def add(self, name: str, state: str = "running", **labels: str) -> None:
        self.boxes[name] = Seen(name, name, state, {**LABELS, "heterofleet.uid": name, **labels}, 0.0)

    def list_own(self) -> list[Seen]:
        if self.silent:
            raise EngineUnavailable("no answer")
        return list(self.boxes.values())

    def has_traces(self) -> bool:
        return self.traces

    def engine(self) -> EngineFacts:
        return EngineFacts("e", "20.10")

    def inspect(self, container_id: str) -> Any:
        self.inspected.append(container_id)
        if self.away:
            self.away -= 1
            raise EngineUnavailable("no answer")
        return SimpleNamespace(cards=(f"GPU-{container_id}",))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[tuple[Executor, Engine]]:
    engine, journal = Engine(), open_journal(tmp_path)
    client: Any = SimpleNamespace(control_plane_id="cp", seen=SeenRevisions())
    identity: Any = SimpleNamespace(node_id="n", instance_id="i", booted=False, former_node_ids=[])
    parts: tuple[Any, Any] = ({Driver.DOCKER: engine}, lambda: None)
    yield Executor(AgentSettings(), client, parts[0], journal, identity, parts[1]), engine
    journal.close()


def poll(executor: Executor) -> None:
    """One round of the loop that looks at containers."""
    executor._poll(executor._parts.drivers[Driver.DOCKER])


def told(executor: Executor) -> dict[str, list[str]]:
    return {entry.container_id: entry.gpus for entry in executor.foreign() or ()}


def test_nothing_is_said_before_docker_was_asked(made: tuple[Executor, Engine]) -> None:
    executor, _ = made
    assert (executor.docker_state(), executor.foreign(), executor.live_task_ids()) == (None, None, None)
    poll(executor)
    state = executor.docker_state()
    assert state is not None and state.available
    assert executor.foreign() == []
    executor._parts.drivers[Driver.DOCKER].last.bad("gone")
    state = executor.docker_state()
    assert state is not None and not state.available and state.error == "gone"
    assert executor.foreign() is None, "cannot list is not none"


def unknown(executor: Executor) -> list[bool]:
    told = (executor.live_task_ids(), executor.foreign(), executor.orphans().entries, executor.images())
    return [one is None for one in told]


@pytest.mark.parametrize(
    ("optional", "traces", "seen_before", "nobody_knows"),
    [
        (False, False, False, True),  # a node that runs containers only
        (True, True, False, True),  # it is stopped, and the state folder is new
        (True, False, True, True),  # somebody took it away
        (True, False, False, False),  # a bare-metal node
    ],
)
def test_an_engine_that_does_not_answer_is_not_one_that_runs_nothing(
    made: tuple[Executor, Engine], optional: bool, traces: bool, seen_before: bool, nobody_knows: bool
) -> None:
    """What happened: with a new state folder and Docker away or too old, beats said that nothing ran here, and the
    server gave the cards of what did run to others."""
    executor, engine = made
    watched = executor._parts.drivers[Driver.DOCKER]
    watched._optional, engine.traces = optional, traces
    if seen_before:
        poll(executor)
        assert unknown(executor) == [False] * 4
    engine.silent = True
    poll(executor)
    assert unknown(executor) == [nobody_knows] * 3 + [True]
    assert executor._rounds.look(watched) is None
    engine.silent = False
    poll(executor)
    assert unknown(executor) == [False] * 4


def test_what_runs_on_one_engine_is_not_told_alone_while_another_is_silent(tmp_path: Path) -> None:
    docker, processes, journal = Engine(), Engine(), open_journal(tmp_path)
    client: Any = SimpleNamespace(control_plane_id="cp", seen=SeenRevisions())
    identity: Any = SimpleNamespace(node_id="n", instance_id="i", booted=False, former_node_ids=[])
    settings = AgentSettings(process_driver=True)
    drivers: Any = {Driver.PROCESS: processes, Driver.DOCKER: docker}
    executor = Executor(settings, client, drivers, journal, identity, GpuSnapshot)
    docker.silent = True
    processes.add("p", **{"heterofleet.control-plane": "cp", "heterofleet.attempt": "1"})
    record = ClaimRecord(
        Key("p", 1), "t", "cp", "token", Stage.RUNNING, TaskSpec(name="t"), container_id="p", driver=Driver.PROCESS
    )
    executor._claims.add(Held(record))
    for traces, live in ((True, None), (False, ["t"])):
        docker.traces = traces
        for engine in executor._parts.drivers.values():
            executor._poll(engine)
        assert executor.live_task_ids() == live
    journal.close()


def test_a_list_in_doubt_is_told_of_only_when_a_second_look_agrees(made: tuple[Executor, Engine]) -> None:
    executor, _engine = made
    record = ClaimRecord(Key("a", 1), "x", "cp", "token", Stage.RUNNING, TaskSpec(name="x"), container_id="a")
    executor._claims.add(Held(record))
    executor._parts.drivers[Driver.DOCKER].look(1)  # lists nothing where one was known
    assert unknown(executor)[:3] == [True] * 3
    executor._parts.drivers[Driver.DOCKER].look(1)
    assert unknown(executor)[:3] == [False] * 3


@pytest.mark.parametrize(
    ("host", "there", "traces"),
    [
        ("tcp://198.18.0.99:2375", False, True),
        ("unix://{folder}/engine.sock", False, False),
        ("unix://{folder}/engine.sock", True, True),
        (None, True, True),
        (None, False, False),
    ],
)
def test_what_shows_that_an_engine_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str | None, there: bool, traces: bool
) -> None:
    monkeypatch.setattr("runtime.agent.drivers.docker.DEFAULT_HOST", f"unix://{tmp_path}/default.sock")
    monkeypatch.setattr("runtime.agent.drivers.docker.TRACES", (f"{tmp_path}/dockerd",))
    if there:
        (tmp_path / ("dockerd" if host is None else "engine.sock")).touch()
    assert DockerDriver(host.format(folder=tmp_path) if host else None).has_traces() is traces


def test_others_containers_hold_their_cards_while_they_run(made: tuple[Executor, Engine]) -> None:
    executor, engine = made
    engine.add("a")
    engine.add("b", "exited")
    engine.add("mine", **{"heterofleet.control-plane": "cp"})
    for _ in range(3):
        poll(executor)
    assert told(executor) == {"a": ["GPU-a"], "b": []}
    assert engine.inspected == ["a", "mine"], "each is looked at once"
    engine.boxes["a"] = dataclasses.replace(engine.boxes["a"], state="exited")
    poll(executor)
    assert told(executor) == {"a": [], "b": []}


def test_a_container_of_this_node_that_no_claim_explains_is_told_of(made: tuple[Executor, Engine]) -> None:
    """A new instance knew nothing of the former one's container, and its beats said that the card was free."""
    executor, engine = made
    assert executor.orphans().entries is None, "nobody has looked yet"
    engine.add("a")
    engine.add("mine", **{"heterofleet.control-plane": "cp", "heterofleet.attempt": "2"})
    poll(executor)
    found = executor.orphans().entries
    assert found is not None
    assert [(entry.container_id, entry.uid, entry.attempt, entry.gpus) for entry in found] == [
        ("mine", "mine", 2, ["GPU-mine"])
    ]


def test_a_look_that_failed_is_taken_again(made: tuple[Executor, Engine]) -> None:
    executor, engine = made
    engine.add("a")
    engine.away = 1
    poll(executor)
    assert executor.foreign() is None, "which cards it holds is not known"
    poll(executor)
    assert told(executor) == {"a": ["GPU-a"]}


def test_a_claim_under_a_former_name_still_holds_its_cards(made: tuple[Executor, Engine]) -> None:
    """It was never looked at, since it had a claim, and so the node never said which cards others hold."""
    executor, engine = made
    engine.add("a", **{"heterofleet.control-plane": "cp", "heterofleet.node": "former", "heterofleet.attempt": "1"})
    record = ClaimRecord(Key("a", 1), "x", "cp", "token", Stage.RUNNING, TaskSpec(name="x"), container_id="a")
    executor._claims.add(Held(record))
    poll(executor)
    assert told(executor) == {"a": ["GPU-a"]}


@pytest.mark.parametrize(
    ("stage", "holds"),
    [
        (Stage.CLAIMING, True),
        (Stage.CLAIMED, True),
        (Stage.CREATED, True),
        (Stage.RUNNING, True),
        (Stage.CONCLUDED, True),
        (Stage.DONE, False),
        (Stage.SLEEPING, False),
    ],
)
def test_who_has_which_card(made: tuple[Executor, Engine], stage: Stage, holds: bool) -> None:
    executor, engine = made
    assert executor.card_users() is None, "nobody has looked yet"
    engine.add("a")
    engine.add("mine", **{"heterofleet.control-plane": "cp", "heterofleet.attempt": "2"})
    gpus = (AssignedGpu("GPU-1", vendor="nvidia"),)
    record = ClaimRecord(Key("u", 1), "x", "cp", "token", stage, TaskSpec(name="x"), gpus)
    # One that is to wake waits for its card: a probe that waited for it in turn would never run.
    executor._claims.add(Held(record, wake=True))
    poll(executor)
    strangers = {"GPU-a": "container a", "GPU-mine": "container mine"}
    assert executor.card_users() == {**strangers, **({"GPU-1": "task x"} if holds else {})}
    engine.silent = True
    executor._parts.drivers[Driver.DOCKER].last.bad("gone")
    assert executor.card_users() is None


def test_an_agent_that_cannot_look_does_not_say_that_it_holds_nothing(made: tuple[Executor, Engine]) -> None:
    """Refused at its first beat, before it had listed its containers, it took another name and left them behind."""
    executor, engine = made
    engine.silent = True
    assert not executor.holds_anything(), "no engine was ever seen here"
    engine.silent = False
    assert not executor.holds_anything()
    engine.add("a")
    assert executor.holds_anything(), "although it has not polled yet"
    poll(executor)
    engine.silent = True
    assert executor.holds_anything()


@pytest.mark.parametrize(
    ("env", "requests", "cards"),
    [
        (["A=1", "NVIDIA_VISIBLE_DEVICES=GPU-2,GPU-1"], None, ("GPU-1", "GPU-2")),
        (["NVIDIA_VISIBLE_DEVICES=void"], None, ()),
        (["NVIDIA_VISIBLE_DEVICES=GPU-1"], [{"Driver": "nvidia", "DeviceIDs": ["GPU-1"]}], ("GPU-1",)),
        (None, [{"Driver": "nvidia", "Count": -1, "DeviceIDs": None}], ()),
    ],
)
def test_the_cards_of_a_container(env: list[str] | None, requests: list[Any] | None, cards: tuple[str, ...]) -> None:
    state = {"Status": "running", "Running": True}
    document = {"Id": "c", "State": state, "Config": {"Env": env}, "HostConfig": {"DeviceRequests": requests}}
    assert facts_of(document).cards == cards
