"""What a heartbeat says, gathered from the parts that know it. Nothing here waits for anything."""

from __future__ import annotations

import platform
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol

from runtime.agent.engines.watch import EnginesSnapshot
from runtime.agent.hardware.inventory import NO_SOURCE, GpuSnapshot
from runtime.agent.link.beat import Content
from runtime.agent.loop import Loop
from runtime.agent.models.scanner import ModelsSnapshot
from runtime.protocol.build import this_arch, this_build
from runtime.protocol.hardware import Fabric, GpuHolder, Hca, Host
from runtime.protocol.heartbeat import (
    IMAGES_CAP,
    MODELS_CAP,
    AgentBuild,
    DiscoveredModel,
    DockerState,
    Foreign,
    ProcessState,
    Slots,
    TaskHealth,
)

if TYPE_CHECKING:
    from runtime.agent.settings import AgentSettings
    from runtime.agent.tasks.orphans import Told


class Workload(Protocol):
    """What the tasks' side tells the heartbeat; each answer comes from memory."""

    def task_health(self) -> list[TaskHealth]: ...
    def live_task_ids(self) -> Optional[list[str]]: ...
    def slots(self) -> Slots: ...
    def docker_state(self) -> Optional[DockerState]: ...
    def process_state(self) -> Optional[ProcessState]: ...
    def images(self) -> Optional[list[str]]: ...
    def foreign(self) -> Optional[list[Foreign]]: ...
    def holders(self, processes: list[GpuHolder]) -> list[GpuHolder]: ...
    def orphans(self) -> Told: ...
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
        models: Callable[[], ModelsSnapshot] = ModelsSnapshot,
        engines: Callable[[], EnginesSnapshot] = EnginesSnapshot,
        hcas: Callable[[], Optional[list[Hca]]] = lambda: None,
    ) -> None:
        self._settings = settings
        self._cards = cards
        self._host = host
        self._workload = workload
        self._loops = loops
        self._models = models
        self._engines = engines
        self._hcas = hcas
        self._build = this_build()
        self._told: Optional[AgentBuild] = None
        self._told_how: list[tuple[str, bool, bool]] = []
        self._fabrics = [Fabric(f["name"], list(f.get("hcas", []))) for f in settings.fabrics]

    def read(self) -> Content:
        workload = self._workload
        cards = self._cards.snapshot()
        docker, process, orphans = workload.docker_state(), workload.process_state(), workload.orphans()
        members: dict[str, Any] = {
            "agent": self._agent(),
            "host": self._host.snapshot(),
            "docker": docker,
            "exec_mode": None if docker is None else "docker" if docker.available else "baremetal",
            "drivers": None if docker is None else _drivers(docker, process),
            "process": process,
            "slots": workload.slots(),
            "labels": self._settings.labels,
            "hcas": self._hcas(),
            "fabrics": self._fabrics,
            "live_task_ids": workload.live_task_ids(),
            "task_health": workload.task_health(),
            "foreign": workload.foreign(),
            "orphans": orphans.entries,
            "told_from": orphans.told_from,
            **card_members(cards),
            "gpu_holders": None if cards.holders is None else workload.holders(cards.holders),
        }
        truncated = orphans.truncated
        images = workload.images()
        if images is not None and len(images) > IMAGES_CAP:
            images, truncated = images[:IMAGES_CAP], True
        members["images"] = images
        models, engines = self._models(), self._engines()
        if docker is None or not docker.available:
            engines = replace(engines, engines=None)  # found by the images on an engine that does not answer now
        found = discovered(models, engines)
        if models.truncated or (found is not None and len(found) > MODELS_CAP):
            found, truncated = found[:MODELS_CAP] if found is not None else None, True
        members.update(engines=engines.engines, discovered_models=found, models_scan=models.scan)
        members["truncated"] = truncated or None
        return Content(members)

    def _agent(self) -> AgentBuild:
        """Build and loops. They are told anew when one is well for the first time, falls behind or goes on: when each
        was well last changes all the time, and would be half of a beat that has nothing to say."""
        loops = [loop.state() for loop in self._loops()]
        how = [(loop.name, loop.overdue, loop.last_ok_at is None) for loop in loops]
        if self._told is None or how != self._told_how:
            build = self._build
            self._told_how = how
            self._told = AgentBuild(
                version=build.version,
                commit=build.commit,
                built_at=build.built_at,
                dirty=build.dirty,
                arch=this_arch(),
                python=platform.python_version(),
                loops=loops,
            )
        return self._told


def _drivers(docker: DockerState, process: Optional[ProcessState]) -> list[str]:
    """What the server may place here."""
    there = {"docker": docker.available, "process": process is not None and process.available}
    return [name for name, available in there.items() if available]


def discovered(models: ModelsSnapshot, engines: EnginesSnapshot) -> Optional[list[DiscoveredModel]]:
    """What running engines serve, then what lies on disks; None as long as neither is known. Each served one once."""
    if models.models is None and not engines.served:
        return None
    return [*dict.fromkeys(engines.served), *(models.models or ())]


def card_members(cards: GpuSnapshot) -> dict[str, Any]:
    """A snapshot as members of the heartbeat. What nobody could measure is absent: no list at all, not an empty one."""
    measured = cards.source != NO_SOURCE
    return {
        "gpus": cards.gpus,
        "gpu_stats": cards.stats if measured else cards.stats or None,
        "gpu_collect_failures": cards.failures if measured else cards.failures or None,
        "gpu_collector_error": cards.collector_error,
        "gpu_detection": cards.detection or None,
        "gpu_capabilities": cards.capabilities if measured else cards.capabilities or None,
        "gpu_topology": cards.topology,
        "gpu_notes": cards.notes or None,
    }
