"""Probe containers on a node's real engine: what their ends do to the card, and what is left of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.card_probe.gate import Gate
from runtime.agent.card_probe.memory import Memory
from runtime.agent.card_probe.owed import Owed
from runtime.agent.card_probe.plan import LABEL_PROBE
from runtime.agent.card_probe.runner import CardProbes
from runtime.agent.drivers.docker import DockerDriver
from runtime.agent.drivers.driver import ContainerPlan
from runtime.agent.drivers.errors import EngineUnavailable
from runtime.agent.hardware.inventory import GpuSnapshot
from runtime.agent.hardware_settings import HardwareSettings
from runtime.protocol.hardware import Gpu, GpuCollectFailure
from tests.integration.waiting import until
from tests.lab import Lab, Node, task_image

NODE = "gpu-a"


class Probed:
    """One card of a node that was lost and is well again, and the agent's part that probes it."""

    def __init__(self, node: Node, state_dir: Path, driver: DockerDriver, node_id: str, **settings: Any) -> None:
        self.uuid = node.cards.read()["cards"][0]["uuid"]
        self.seen = self.well = GpuSnapshot(gpus=[Gpu(self.uuid, "nvidia", 0)])
        self.now = 1000.0
        self.users: dict[str, str] | None = {}
        self.driver = driver
        self.memory = Memory(state_dir)
        owed = self.memory.read() or {self.uuid: Owed("2026-01-01T00:00:00.000Z", "GPU is lost")}
        self.gate = Gate(lambda: self.seen, owed)
        known = HardwareSettings(**{"probe_image": task_image.NAME, "probe_timeout_s": 60.0, **settings})
        self.probes = CardProbes(
            known, self.gate, self.memory, driver, node_id, lambda: self.users, clock=lambda: self.now
        )

    def round(self) -> str | None:
        """One round; what the beat says of the card then, None when it is well."""
        self.probes.round()
        failures = self.gate.snapshot().failures
        return failures[0].reason.partition("; out since")[0] if failures else None

    def wait(self, said: str | None) -> None:
        def reached() -> bool:
            now = self.round()
            return now is None if said is None else said in (now or "")

        until(f"the card is {said or 'well'}", reached)

    def bad(self) -> GpuSnapshot:
        return GpuSnapshot(gpus=self.well.gpus, failures=[GpuCollectFailure(self.uuid, 0, "GPU is lost")])


@pytest.fixture
def engine(lab: Lab) -> Iterator[tuple[Node, Callable[[], list[str]]]]:
    """A node, and the ids of the probe containers on its engine."""
    node = lab.node(1)

    def there() -> list[str]:
        return node.docker("ps", "-aq", "--no-trunc", "--filter", f"label={LABEL_PROBE}").stdout.split()

    yield node, there
    for container in there():
        node.docker("rm", "-f", container)


@pytest.fixture
def probed(engine: tuple[Node, Any], tmp_path: Path) -> Callable[..., Probed]:
    def make(*command: str, driver: DockerDriver | None = None, node_id: str = NODE, **settings: Any) -> Probed:
        node, _ = engine
        driver = driver or DockerDriver(f"unix://{node.docker_socket}")
        return Probed(node, tmp_path, driver, node_id, probe_command=list(command), **settings)

    return make


def test_a_probe_that_ends_well_gives_the_card_back(engine: Any, probed: Callable[..., Probed]) -> None:
    node, there = engine
    asked = len(node.cards.runtime_calls())
    card = probed("env", "NVIDIA_VISIBLE_DEVICES", "exit", "0")
    assert card.round() == "probe container runs"
    assert card.memory.read().keys() == {card.uuid}
    card.wait(None)
    assert there() == []
    assert card.uuid in str(node.cards.runtime_calls()[asked:]), "it had the card, by the runtime that hands it out"
    card.round()
    assert card.memory.read() == {}


def test_one_that_ends_badly_keeps_it_out_and_comes_again_later(engine: Any, probed: Callable[..., Probed]) -> None:
    _, there = engine
    card = probed("print", "no kernel image", "exit", "3")
    card.wait("probe container exited with 3: no kernel image")
    assert there() == []
    card.now += 9
    assert "exited with 3" in (card.round() or "") and there() == []
    card.now += 2
    assert card.round() == "probe container runs" and len(there()) == 1
    assert card.round() is not None and len(there()) <= 1, "one at a time"
    card.wait("exited with 3")


def test_one_that_hangs_is_removed(engine: Any, probed: Callable[..., Probed]) -> None:
    _, there = engine
    card = probed("ignore-term", "forever")
    assert card.round() == "probe container runs"
    (container,) = there()
    assert container not in [seen.id for seen in card.driver.list_own()], "it is no task"
    card.now += 59
    assert card.round() == "probe container runs" and there() == [container]
    card.now += 2
    assert card.round() == "probe container did not end in 60 s" and there() == []


def test_a_card_that_is_bad_again_ends_its_probe(engine: Any, probed: Callable[..., Probed]) -> None:
    _, there = engine
    card = probed("forever")
    card.round()
    card.seen = card.bad()
    assert card.round() == "GPU is lost" and there() == []
    card.seen = GpuSnapshot(gpus=card.well.gpus)
    assert card.round() == "probe container runs", "no pause: the try before said nothing"


def test_no_probe_beside_a_task(engine: Any, probed: Callable[..., Probed]) -> None:
    _, there = engine
    card = probed("exit", "0")
    users: list[tuple[dict[str, str] | None, str]] = [
        ({card.uuid: "task x"}, "task x holds the card"),
        (None, "it is not known which containers hold cards"),
    ]
    for who, said in users:
        card.users = who
        assert card.round() == f"probe container not yet run: {said}" and there() == []
    card.users = {}
    card.wait(None)


def test_without_its_image_or_its_engine_the_card_stays_out(probed: Callable[..., Probed]) -> None:
    card = probed(probe_image="hf-lab/no-such-probe:1")
    assert card.round() == (
        "probe container not yet run: its image hf-lab/no-such-probe:1 is not on this node, and is never pulled for it"
    )
    away = probed("exit", "0", driver=DockerDriver("unix:///no/such/engine.sock"))
    assert (away.round() or "").startswith("probe container not yet run: Docker does not answer")


def test_one_that_cannot_be_started_says_why(probed: Callable[..., Probed], engine: Any) -> None:
    _, there = engine
    card = probed("exit", "0")
    card.well.gpus[0] = Gpu("GPU-no-such-card", "nvidia", 0)
    card.gate = Gate(lambda: card.seen, {"GPU-no-such-card": Owed("2026-01-01T00:00:00.000Z", "lost")})
    settings = HardwareSettings(probe_image=task_image.NAME, probe_command=["exit", "0"])
    card.probes = CardProbes(settings, card.gate, card.memory, card.driver, NODE, dict)
    card.round()
    card.wait("probe container could not be started")
    assert there() == []


def test_what_an_earlier_run_left_is_removed_first(engine: Any, probed: Callable[..., Probed]) -> None:
    _, there = engine
    before = probed("forever")
    before.round()
    (left,) = there()
    others = probed("forever", node_id="gpu-b")
    others.round()
    assert len(there()) == 2, "another node's on the same engine is none of ours"
    after = probed("forever")
    assert after.round() == "probe container runs"
    assert left not in there() and len(there()) == 2
    after.probes.stop()
    others.probes.stop()
    assert there() == [], "an agent that is stopped takes its probes with it"


class LosesAnswers(DockerDriver):
    """The real engine, whose first answers to ``create`` get lost."""

    lost = 0

    def create(self, plan: ContainerPlan, spare_name: str) -> str:
        made = super().create(plan, spare_name)
        self.lost += 1
        if self.lost == 1:
            raise EngineUnavailable("the connection was cut")
        return made


def test_a_container_whose_making_was_not_confirmed_is_not_left_behind(
    engine: Any, probed: Callable[..., Probed]
) -> None:
    node, there = engine
    card = probed("forever", driver=LosesAnswers(f"unix://{node.docker_socket}"))
    assert "the connection was cut" in (card.round() or "")
    (first,) = there()
    assert card.round() == "probe container runs"
    assert first not in there() and len(there()) == 1
