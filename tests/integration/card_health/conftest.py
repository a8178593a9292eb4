"""A real fleet of one node with four cards, for what happens to cards and to the work on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.fleet import Fleet, fleet
from tests.integration.waiting import until
from tests.lab import Lab, Node
from tests.lab.cards.state import default_state
from tests.lab.fixtures import lab  # noqa: F401
from tests.lab.process import wait_for

PLANE = {"heartbeat_interval_s": 1, "start_grace_s": 1}
CARDS = 4
FIRST_PORT = 6


class Bench:
    """The fleet, and its cards as the API tells of them. ``cards[i]`` is the uuid of card i when all are well."""

    def __init__(self, made: Fleet) -> None:
        self.fleet = made
        self.node: Node = made.nodes[0]
        self.cards = [card["uuid"] for card in self.node.cards.read()["cards"]]

    def health(self) -> list[str | None]:
        """Of each card by its place; None for one that the server does not tell of."""
        told = {card["uuid"]: card["health"] for card in self.fleet.plane.get("/api/v1/gpus")["gpus"]}
        return [told.get(uuid) for uuid in self.cards]

    def wait_health(self, *expected: str, timeout: float = 40) -> None:
        wait_for(f"the cards are {expected}", lambda: self.health() == list(expected) or self.health(), timeout, 0.1)

    def events(self, after: int) -> list[tuple[str, int | None]]:
        """(kind, place of the card) of what was told of cards since."""
        told = self.fleet.plane.get(f"/api/v1/events?after={after}&limit=1000")["events"]
        return [
            (event["kind"], self.cards.index(event["gpu_uuid"]) if event["gpu_uuid"] else None)
            for event in told
            if event["kind"].startswith(("gpu_", "cards_"))
        ]

    def wait_events(self, after: int, expected: list[tuple[str, int | None]]) -> None:
        """Events are written about a second after the beat that they are of."""
        wait_for(f"the events are {expected}", lambda: self.events(after) == expected or self.events(after), 20, 0.1)

    def settled(self) -> int:
        """The newest event's number, once whatever a test before has done to cards is told."""
        ends = {"gpu_returned", None}

        def last_of_each() -> set[str | None]:
            return set({place: kind for kind, place in self.events(0) if kind != "gpu_suspect"}.values())

        wait_for("lost cards are told to be back", lambda: last_of_each() <= ends or last_of_each(), 20, 0.1)
        return max((e["id"] for e in self.fleet.plane.get("/api/v1/events?limit=1000")["events"]), default=0)

    def run_on(self, place: int, task_id: str) -> dict[str, Any]:
        """A task that stays, on this card; as it is when its container runs (the status says so from the claim on)."""
        self.fleet.submit(task_id, "forever", gpus={"count": 1, "uuids": [self.cards[place]]})
        until(f"{task_id} runs", lambda: self.fleet.task(task_id)["phase"] == "running")
        return self.fleet.task(task_id)

    def assigned(self, task_id: str) -> list[str]:
        return [card["uuid"] for card in self.fleet.task(task_id)["gpus_assigned"] or []]


@pytest.fixture(scope="package")
def whole_bench(lab: Lab) -> Iterator[Bench]:
    node = lab.node(1)
    before = len(node.cards.read()["cards"])
    node.cards.reset()
    try:
        with fleet([node], name="cards", plane=PLANE, first_port=FIRST_PORT) as made:
            node.cards.write(default_state(node.name, CARDS))
            yield Bench(made)
    finally:
        node.cards.write(default_state(node.name, before))


@pytest.fixture
def bench(whole_bench: Bench) -> Iterator[Bench]:
    """All cards well and free before; no task left after."""
    whole_bench.node.cards.write(default_state(whole_bench.node.name, CARDS))
    whole_bench.wait_health("ok", "ok", "ok", "ok", timeout=60)
    yield whole_bench
    whole_bench.node.cards.clear_faults()
    for task_id in whole_bench.fleet.accepted:
        whole_bench.fleet.plane.request("DELETE", f"/api/v1/tasks/{task_id}")
    for task_id in whole_bench.fleet.accepted:
        gone = lambda task=task_id: whole_bench.fleet.plane.request("GET", f"/api/v1/tasks/{task}")[0] == 404  # noqa: E731
        until(f"{task_id} is gone", gone, 60)
    whole_bench.fleet.forget_tasks()
