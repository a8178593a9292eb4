"""A round over many containers, with a server that does not answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from runtime.agent.drivers.driver import EngineFacts, Seen
from runtime.agent.link.errors import Unavailable
from runtime.agent.tasks.listing import LastListing
from runtime.agent.tasks.outages import Outages
from runtime.agent.tasks.parts import Claims
from runtime.agent.tasks.rounds import Rounds


def box(number: int) -> Seen:
    labels = {
        "heterofleet.control-plane": "cp", "heterofleet.node": "n", "heterofleet.instance": "old",
        "heterofleet.task": f"t{number}", "heterofleet.uid": f"u{number}", "heterofleet.attempt": "1",
        "heterofleet.claim": "c",
    }  # fmt: skip
    return Seen(f"{number:064d}", f"task-t{number}", "running", labels, 0.0)


def test_a_server_that_hangs_is_asked_once_a_round() -> None:
    """The journal was lost with 50 containers and the server hung: half a minute each, until the watchdog came."""
    asked: list[str] = []

    def hang(task_id: str, token: Any) -> Any:
        asked.append(task_id)
        raise Unavailable("no answer in 30 s")

    parts: Any = SimpleNamespace(
        client=SimpleNamespace(task=hang, control_plane_id="cp"),
        driver=SimpleNamespace(list_own=lambda: [box(number) for number in range(50)], engine=lambda: parts.engine),
        journal=SimpleNamespace(fact=lambda name: None, save_fact=lambda *fact: None, prune=lambda days: None),
        identity=SimpleNamespace(node_id="n", instance_id="new"),
        settings=SimpleNamespace(outbox_keep_days=30),
        engine=EngineFacts("e", "20.10"),
        clock=lambda: 1000.0,
        wall=lambda: 1000.0,
    )
    intents: Any = SimpleNamespace(named=lambda key: False, unaccounted=list)
    rounds = Rounds(parts, Claims(), SimpleNamespace(), intents, Outages(), LastListing(60.0))  # type: ignore[arg-type]
    rounds.reconcile()
    assert len(asked) == 1
    rounds.reconcile()
    assert len(asked) == 2
