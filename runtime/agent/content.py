"""What a heartbeat says, gathered from the parts that know it. Nothing here waits for anything."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol

from runtime.agent.hardware.inventory import GpuSnapshot
from runtime.agent.link.beat import Content
from runtime.agent.loop import Loop
from runtime.protocol.build import this_arch, this_build
from runtime.protocol.heartbeat import (
    IMAGES_CAP,
    AgentBuild,
    DockerState,
    Fabric,
    Foreign,
    Host,
    Slots,
    TaskHealth,
)

if TYPE_CHECKING:
    from runtime.agent.settings import AgentSettings


class Workload(Protocol):
    """What the tasks' side tells the heartbeat; each answer comes from memory."""

    def task_health(self) -> list[TaskHealth]: ...
    def live_task_ids(self) -> Optional[list[str]]: ...
    def slots(self) -> Slots: ...
    def docker_state(self) -> Optional[DockerState]: ...
    def images(self) -> Optional[list[str]]: ...
    def foreign(self) -> Optional[list[Foreign]]: ...
    def undelivered(self) -> int: ...
    def loops(self) -> list[Loop]: ...


class CardSource(Protocol):
    def snapshot(self) -> GpuSnapshot: ...


class HostSource(Protocol):
    def snapshot(self) -> Host: ...


class ContentSource:
    """Reads all parts once per beat."""

    def __init__(
        self,
        settings: AgentSettings,
        cards: CardSource,
        host: HostSource,
        workload: Workload,
        loops: Callable[[], list[Loop]],
    ) -> None:
        self._settings = settings
        self._cards = cards
        self._host = host
        self._workload = workload
        self._loops = loops
        self._build = this_build()
        self._fabrics = [Fabric(f["name"], list(f.get("hcas", []))) for f in settings.fabrics]

    def read(self) -> Content:
        workload, build = self._workload, self._build
        docker = workload.docker_state()
        members: dict[str, Any] = {
            "agent": AgentBuild(
                version=build.version,
                commit=build.commit,
                built_at=build.built_at,
                dirty=build.dirty,
                arch=this_arch(),
                python=platform.python_version(),
                loops=[loop.state() for loop in self._loops()],
            ),
            "host": self._host.snapshot(),
            "docker": docker,
            "exec_mode": None if docker is None else "docker" if docker.available else "baremetal",
            "drivers": None if docker is None else ["docker"] if docker.available else [],
            "slots": workload.slots(),
            "labels": self._settings.labels,
            "fabrics": self._fabrics,
            "live_task_ids": workload.live_task_ids(),
            "task_health": workload.task_health(),
            "foreign": workload.foreign(),
            **card_members(self._cards.snapshot()),
        }
        images = workload.images()
        if images is not None and len(images) > IMAGES_CAP:
            images = images[:IMAGES_CAP]
            members["truncated"] = ["images"]
        members["images"] = images
        return Content(members)


def card_members(cards: GpuSnapshot) -> dict[str, Any]:
    """A snapshot as members of the heartbeat."""
    return {
        "gpus": cards.gpus,
        "gpu_stats": cards.stats,
        "gpu_collect_failures": cards.failures,
        "gpu_collector_error": cards.collector_error,
        "gpu_detection": cards.detection,
        "gpu_capabilities": cards.capabilities,
        "gpu_topology": cards.topology,
    }
