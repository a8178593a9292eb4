"""A node that is silent for long: what its tasks do meanwhile, and what becomes of them when it is back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.faults.fleet import Fleet
from tests.faults.ledger import FOLDER, INSIDE
from tests.faults.world import Scenario
from tests.integration.waiting import until
from tests.lab import Node
from tests.lab.simulated_node import SimulatedNode

MOVES = {"on_node_lost": "reschedule", "max_attempts": 3}
ELSEWHERE = "elsewhere"


@dataclass
class Outage:
    """The node was cut off with these tasks on it. ``before``, ``lost`` and ``back``: the tasks as the API showed them
    before, when the node was lost, and when it had been back for a while. ``boxes``: their containers before."""

    fleet: Fleet
    other: SimulatedNode
    before: dict[str, dict[str, Any]] = field(default_factory=dict)
    lost: dict[str, dict[str, Any]] = field(default_factory=dict)
    back: dict[str, dict[str, Any]] = field(default_factory=dict)
    boxes: dict[str, str] = field(default_factory=dict)
    releasing: set[str] = field(default_factory=set)

    @property
    def node(self) -> Node:
        return self.fleet.places[0].node

    def alive(self) -> dict[str, str]:
        """Task -> container of what runs on the node."""
        words = ["ps", "--no-trunc", "--filter", "label=heterofleet.uid", "--format",
                 '{{.Label "heterofleet.task"}} {{.ID}}']  # fmt: skip
        return dict(line.split(" ", 1) for line in self.node.docker(*words).stdout.splitlines())

    def left(self) -> list[str]:
        """Tasks of all containers on the node, running or not."""
        words = ["ps", "-a", "--filter", "label=heterofleet.uid", "--format", '{{.Label "heterofleet.task"}}']
        return self.node.docker(*words).stdout.split()


def state(fleet: Fleet, name: str) -> str:
    return str(fleet.plane.get(f"/api/v1/nodes/{name}")["state"])


@contextlib.contextmanager
def cut_off(fleet: Fleet) -> Iterator[None]:
    """The node's link is gone until it is lost, and while the block runs; online again after it."""
    place = fleet.places[0]
    place.node.cut_network()
    try:
        until("the node is lost", lambda: state(fleet, place.name) == "lost")
        yield
    finally:
        place.node.heal_network()
    until("the node is back", lambda: state(fleet, place.name) == "online", 60)


@contextlib.contextmanager
def beating(other: SimulatedNode) -> Iterator[None]:
    """It is heard all the time, whatever the test waits for, and says goodbye at the end."""
    over = threading.Event()
    assert other.beat()[0] == 200

    def beat() -> None:
        while not over.wait(0.5):
            other.beat()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        other.beat(leaving=True)


def take(other: SimulatedNode) -> dict[str, tuple[int, str]]:
    """Claim what waits for this node: task -> (attempt, token)."""
    return {task["id"]: (task["attempt"], other.claim(task["id"], task["attempt"])[0]) for task in other.scheduled()}


@pytest.fixture(scope="module")
def outage(one_node: Fleet) -> Iterator[Outage]:
    plane = one_node.plane
    other = SimulatedNode(plane.url, plane.key, ELSEWHERE, cards=2)
    found = Outage(one_node, other)
    spec: dict[str, dict[str, Any]] = {
        "waits": {"gpus": {"count": 1}},
        "ends": {"on_node_lost": "wait"},
        "sleeps": {},
        "moves": {"gpus": {"count": 1}, **MOVES},
        "moved": {"max_attempts": 2},
        "fails": {"on_node_lost": "fail"},
        "forced": {"stop_grace_s": 1},
        "forced-end": {},
    }
    on_word = ("/bin/sh", "-c", f"until [ -e {INSIDE}/go ]; do sleep 0.2; done; exit 3")
    words = {"ends": on_word, "forced-end": on_word}
    for name, members in spec.items():
        one_node.submit(name, *words.get(name, ("forever",)), **{"stop_grace_s": 1, **members})
    for name in spec:
        one_node.wait(name, "running")
    until("all programs run", lambda: set(found.alive()) == set(spec))
    one_node.order("sleeps", "sleep")
    one_node.wait("sleeps", "sleeping")
    found.boxes = found.alive()
    found.before = {name: one_node.task(name) for name in spec}
    with contextlib.ExitStack() as stack:
        yield from _long_silence(found, spec, stack)


def _long_silence(found: Outage, spec: dict[str, dict[str, Any]], stack: contextlib.ExitStack) -> Iterator[Outage]:
    one_node, plane, other, here = found.fleet, found.fleet.plane, found.other, found.node.name
    with cut_off(one_node):
        found.lost = {name: one_node.task(name) for name in spec}
        assert "will be placed again" in plane.cli("tasks", "reschedule", "moved").stderr
        assert plane.cli("tasks", "reschedule", "sleeps", check=False).returncode == 6, "what sleeps never moves"
        for name in ("forced", "forced-end"):
            assert plane.request("DELETE", f"/api/v1/tasks/{name}?force=true")[0] == 204
        claims: dict[str, tuple[int, str]] = {}
        stack.enter_context(beating(other))
        until("the others run elsewhere", lambda: claims.update(take(other)) or set(claims) == {"moves", "moved"})
        assert {attempt for attempt, _ in claims.values()} == {2}
        found.releasing = {holder for card in plane.get(f"/api/v1/nodes/{here}")["gpus"]
                           for holder in card["allocated_to"]}  # fmt: skip
        found.node.sh(f"touch {FOLDER}/go")
        until("what was to end while nobody heard has ended", lambda: not {"ends", "forced-end"} & set(found.alive()))
    until("only what is right goes on", lambda: set(found.alive()) == {"waits"}, 90)
    until("the others are gone", lambda: sorted(found.left()) == ["sleeps", "waits"], 90)
    one_node.wait("ends")
    found.back = {name: one_node.task(name) for name in spec if not name.startswith("forced")}
    for name, (attempt, token) in claims.items():
        assert other.put(name, attempt, token, "running", "completed", exit_code=0)[0] == 200
    yield found


def test_what_waits_goes_on_as_if_nothing_had_been(outage: Outage) -> None:
    for name, status in (("waits", "running"), ("sleeps", "sleeping")):
        assert outage.lost[name]["status"] == status and outage.lost[name]["node_lost_since"]
        assert (outage.back[name]["status"], outage.back[name]["node_lost_since"]) == (status, None)
        assert outage.back[name]["attempts"] == outage.before[name]["attempts"]
    assert outage.alive() == {"waits": outage.boxes["waits"]}


def test_a_result_of_the_time_of_silence_arrives(outage: Outage) -> None:
    task = outage.back["ends"]
    assert (task["status"], task["exit_code"], task["reason"], task["attempt"]) == ("failed", 3, "exited", 1)


def test_what_was_moved_runs_elsewhere_and_its_copy_ends_on_contact(outage: Outage) -> None:
    """By its own policy, and by the operator's word on a lost node."""
    assert (outage.lost["moves"]["status"], outage.lost["moves"]["attempt"]) == ("pending", 2)
    assert outage.lost["moved"]["status"] == "running" and outage.lost["moved"]["node_lost_since"]
    for name in ("moves", "moved"):
        task = outage.back[name]
        assert (task["status"], task["node_id"], task["attempt"]) == ("running", ELSEWHERE, 2)
        assert [one["node_id"] for one in task["attempts"]] == [outage.node.name, ELSEWHERE]
        assert outage.fleet.task(name)["status"] == "completed"
    assert outage.back["moves"]["attempts"][0]["reason"] == "node_lost"


def test_a_moved_tasks_card_is_not_free_before_its_node_has_said_so(outage: Outage) -> None:
    uids = {name: outage.before[name]["uid"] for name in ("moves", "waits")}
    assert any(uids["moves"] in holder or "moves" in holder for holder in outage.releasing), outage.releasing

    def held() -> list[str]:
        gpus = outage.fleet.plane.get(f"/api/v1/nodes/{outage.node.name}")["gpus"]
        return [holder for card in gpus for holder in card["allocated_to"]]

    until("only the card of what waits is held", lambda: len(held()) == 1)


def test_what_shall_fail_has_failed_and_its_copy_is_ended(outage: Outage) -> None:
    task = outage.back["fails"]
    assert (task["status"], task["reason"], task["reason_class"]) == ("failed", "node_lost", "infrastructure")


def test_what_was_deleted_by_force_is_ended_with_grace_and_its_result_archived(outage: Outage) -> None:
    """Only after three answers that the server does not know it, 5 s apart with a good beat between."""
    status = outage.node.run(["/opt/heterofleet/current/heterofleet-agent", "status", "--json"], check=False).stdout
    assert '"undelivered": 0' in status, status
    assert outage.fleet.plane.request("GET", "/api/v1/tasks/forced")[0] == 404


def test_with_nowhere_else_to_go_it_starts_again_there_when_its_copy_is_gone(outage: Outage) -> None:
    """It needs all the cards, and its own copy holds them: no two attempts are ever alive together."""
    fleet = outage.fleet
    for name in ("waits", "sleeps"):
        fleet.order(name, "stop")
        fleet.wait(name)
    fleet.forget_tasks()
    fleet.submit("alone", "forever", gpus={"count": 2}, node_id=outage.node.name, stop_grace_s=1, **MOVES)
    fleet.wait("alone", "running")
    until("it runs", lambda: "alone" in outage.alive())
    first = outage.alive()["alone"]
    with cut_off(fleet):
        assert (fleet.task("alone")["status"], fleet.task("alone")["attempt"]) == ("pending", 2)
        assert outage.alive()["alone"] == first, "silence proves nothing: it goes on"
    until("its second attempt runs", lambda: outage.alive().get("alone") not in (None, first), 60)
    task = fleet.wait("alone", "running")
    assert (task["attempt"], task["starts"], task["node_id"]) == (2, 2, outage.node.name)
    fleet.order("alone", "stop")
    fleet.wait("alone")
    fleet.hold(Scenario(excused=frozenset({"node_lost"})))
