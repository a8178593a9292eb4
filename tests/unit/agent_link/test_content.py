"""What a beat says of cards and engines: only what was measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable, Optional

import pytest

from runtime.agent.content import ContentSource, card_members
from runtime.agent.engines.watch import EnginesSnapshot
from runtime.agent.hardware.inventory import GpuSnapshot
from runtime.agent.models.scanner import ModelsSnapshot
from runtime.agent.settings import AgentSettings
from runtime.agent.tasks.orphans import Told
from runtime.protocol.codec import encode
from runtime.protocol.hardware import Gpu, GpuDetection, GpuStats, Host
from runtime.protocol.heartbeat import IMAGES_CAP, DockerState, Engine, Heartbeat, LoopState, Slots

CARD = Gpu("GPU-a", "nvidia", 0)
MEASURED = {"gpu_stats", "gpu_capabilities", "gpu_collect_failures"}


@pytest.mark.parametrize(
    ("snapshot", "told"),
    [
        (GpuSnapshot(), set()),
        (GpuSnapshot(gpus=[CARD]), {"gpus"}),  # of an earlier start
        (
            GpuSnapshot(gpus=[CARD], collector_error="it hangs", detection=[GpuDetection("nvidia", True)]),
            {"gpus", "gpu_collector_error", "gpu_detection"},
        ),
        (GpuSnapshot(gpus=[CARD], source="nvml", stats=[GpuStats("GPU-a")]), {"gpus", *MEASURED}),
        (
            GpuSnapshot(gpus=[CARD], source="nvidia-smi", collector_error="another vendor's tool hangs"),
            {"gpus", "gpu_collector_error", *MEASURED},
        ),
        (GpuSnapshot(gpus=[], source="none"), {"gpus", *MEASURED}),
    ],
    ids=["at-the-start", "known-before", "failing", "measured", "one-of-two", "no-cards"],
)
def test_what_was_not_measured_is_absent_and_not_empty(snapshot: GpuSnapshot, told: set[str]) -> None:
    assert {name for name, value in card_members(snapshot).items() if value is not None} == told


class Tasks:
    """A node whose Docker is as given."""

    def __init__(self, docker: Optional[DockerState], images: Optional[list[str]] = None, cut: bool = False) -> None:
        self.docker_state = lambda: docker
        self.process_state = self.live_task_ids = self.foreign = lambda: None
        self.images = lambda: images
        self.task_health: Callable[[], list[Any]] = list
        self.orphans = lambda: Told(None, truncated=cut)
        self.slots = lambda: Slots(64)


@pytest.mark.parametrize(
    ("docker", "engines"),
    [
        (DockerState(True, "20.10"), [Engine("vllm")]),
        (DockerState(False, error="it does not answer"), None),
        (None, None),
    ],
)
def test_engines_are_told_only_while_their_images_can_be_listed(
    docker: Optional[DockerState], engines: Optional[list[Engine]]
) -> None:
    source: Any = SimpleNamespace(snapshot=GpuSnapshot)
    found = lambda: EnginesSnapshot([Engine("vllm")])  # noqa: E731
    tasks: Any = Tasks(docker)
    content = ContentSource(AgentSettings(), source, SimpleNamespace(snapshot=Host), tasks, list, engines=found)  # type: ignore[arg-type]
    assert content.read().members["engines"] == engines


@pytest.mark.parametrize(
    ("images", "models", "orphans", "truncated"),
    [
        (IMAGES_CAP, ModelsSnapshot(), False, None),
        (IMAGES_CAP + 1, ModelsSnapshot(), False, True),
        (1, ModelsSnapshot([], truncated=True), False, True),
        (1, ModelsSnapshot(), True, True),
    ],
)
def test_a_beat_with_less_than_there_is_says_so(
    images: int, models: ModelsSnapshot, orphans: bool, truncated: Optional[bool]
) -> None:
    tasks: Any = Tasks(None, ["i"] * images, orphans)
    source: Any = SimpleNamespace(snapshot=GpuSnapshot)
    members = (
        ContentSource(AgentSettings(), source, SimpleNamespace(snapshot=Host), tasks, list, lambda: models)
        .read()
        .members
    )  # type: ignore[arg-type]
    beat = Heartbeat(1, "gpu-a", "i" * 8, 1, 1, **members)
    assert encode(beat, drop_none=True).get("truncated") is truncated
    assert len(members["images"]) == min(images, IMAGES_CAP)


def test_loops_are_told_anew_when_one_falls_behind_and_not_for_the_time_alone() -> None:
    """Fourteen times of day, each beat another one, were half of a beat that had nothing to say."""
    told = [LoopState("beat", "2026-01-01T00:00:00.000Z"), LoopState("poll")]
    loops = [SimpleNamespace(state=lambda place=place: told[place]) for place in (0, 1)]
    source: Any = SimpleNamespace(snapshot=GpuSnapshot)
    tasks: Any = Tasks(None)
    content = ContentSource(AgentSettings(), source, SimpleNamespace(snapshot=Host), tasks, lambda: loops)  # type: ignore[arg-type, return-value]

    def loops_told() -> list[LoopState]:
        return list(content.read().members["agent"].loops)

    first = loops_told()
    told[0] = LoopState("beat", "2026-01-01T00:00:05.000Z")
    assert loops_told() == first, "nothing but a time changed"
    told[1] = LoopState("poll", "2026-01-01T00:00:06.000Z")
    assert loops_told() == told, "one was well for the first time"
    told[0] = LoopState("beat", "2026-01-01T00:00:05.000Z", overdue=True)
    assert loops_told() == told, "one fell behind"
