"""A round over many containers, with a server that does not answer."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.agent.drivers.driver import EngineFacts, Seen
from runtime.agent.hardware.inventory import GpuSnapshot
from runtime.agent.link.errors import Unavailable
from runtime.agent.settings import AgentSettings
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.listing import LastListing
from runtime.agent.tasks.outages import Outages
from runtime.agent.tasks.parts import Claims
from runtime.agent.tasks.preparing import Preparing
from runtime.agent.tasks.records import ClaimRecord, Key, Stage
from runtime.agent.tasks.rounds import Rounds
from runtime.protocol.tasks import TaskSpec, Volume


def box(number: int, state: str = "running") -> Seen:
    labels = {
        "heterofleet.control-plane": "cp", "heterofleet.node": "n", "heterofleet.instance": "old",
        "heterofleet.task": f"t{number}", "heterofleet.uid": f"u{number}", "heterofleet.attempt": "1",
        "heterofleet.claim": "c",
    }  # fmt: skip
    return Seen(f"{number:064d}", f"task-t{number}", state, labels, 0.0)


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


@pytest.mark.parametrize(("state", "stage", "known"), [("created", "claimed", False), ("running", "starting", True)])
def test_what_was_not_started_when_the_journal_was_lost_is_checked_again(state: str, stage: str, known: bool) -> None:
    """It would have been started without a look at what lies at its mount sources now."""
    saved: list[ClaimRecord] = []
    parts: Any = SimpleNamespace(
        identity=SimpleNamespace(node_id="n", instance_id="old"),
        journal=SimpleNamespace(save=saved.append, fact=lambda name: None),
        clock=lambda: 0.0,
    )
    claims, moved = Claims(), []
    way: Any = SimpleNamespace(advance=moved.append)
    rounds = Rounds(parts, claims, way, SimpleNamespace(), Outages(), LastListing(60.0))  # type: ignore[arg-type]
    rounds._take_over(box(1, state), None, stale=False)
    (held,) = claims.all()
    assert (moved, saved) == ([held], [held.record])
    assert (held.record.stage.value, held.record.container_id is not None, held.maybe_made) == (stage, known, not known)


def test_a_container_found_by_its_labels_gets_its_mounts_compared(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    spec = TaskSpec("a", image="app:1", volumes=[Volume(str(folder), "/data")])
    record = ClaimRecord(Key("u1", 1), "t1", "cp", "c", Stage.CLAIMED, spec)
    held = Held(record, secret_spec=spec, maybe_made=True)

    def write(held: Held, **changes: Any) -> None:
        held.record = dataclasses.replace(held.record, **changes)

    parts: Any = SimpleNamespace(
        step=lambda *step: None,
        snapshot=lambda: GpuSnapshot(),
        settings=AgentSettings(volumes_allow=[str(tmp_path)]),
        driver=SimpleNamespace(list_own=lambda: [box(1, "created")]),
        write=write,
    )
    turn: Any = SimpleNamespace(parts=parts)
    preparing = Preparing(turn, SimpleNamespace(full_spec=lambda held: held.secret_spec))  # type: ignore[arg-type]
    assert preparing.prepare(held)
    assert (held.record.stage, held.record.container_id) == (Stage.CREATED, box(1).id)
    assert not preparing.swapped(held)
    folder.rename(tmp_path / "other")
    folder.mkdir()
    assert preparing.swapped(held)
