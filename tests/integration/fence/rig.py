"""A claim's volumes with a real journal and a real engine, without a server: the driver's own path."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from runtime.agent.drivers.docker import DockerDriver
from runtime.agent.drivers.driver import LABEL_ATTEMPT, LABEL_UID, ContainerPlan, Facts, Mount
from runtime.agent.settings import AgentSettings
from runtime.agent.tasks.engines import Engine
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.journal import open_journal
from runtime.agent.tasks.mounting import Mounting
from runtime.agent.tasks.parts import Parts
from runtime.agent.tasks.records import ClaimRecord, Key, Stage
from runtime.protocol.states import Driver
from runtime.protocol.tasks import TaskSpec, Volume
from tests.integration.fence.yard import Yard

IMAGE = "hf-lab/task:1"
END_S = 30.0


class Rig:
    """``settings`` as of an agent whose allowed folder is the yard's."""

    def __init__(self, yard: Yard, **settings: Any) -> None:
        self.driver = DockerDriver()
        state = yard.root / "state"
        state.mkdir()
        base = {"volumes_allow": [str(yard.data)], "state_dir": str(state)}
        journal = open_journal(state)
        self.engine = Engine(Driver.DOCKER, self.driver, journal, END_S)
        parts: Any = SimpleNamespace(
            settings=AgentSettings(**{**base, **settings}),
            journal=journal,
            pins=yard.pins,
            driver_of=lambda held: self.driver,
            engine_of=lambda held: self.engine,
        )
        parts.write = lambda held, **changes: Parts.write(parts, held, **changes)
        self.parts: Any = parts
        self.mounting = Mounting(parts)

    def claim(self, name: str, *volumes: Volume) -> Held:
        spec = TaskSpec(name, volumes=list(volumes))
        held = Held(ClaimRecord(Key(name, 1), name, "cp", f"token-of-{name}", Stage.CLAIMED, spec))
        self.parts.journal.save(held.record)
        return held

    def create(self, held: Held, mounts: Sequence[Mount], *program: str) -> str:
        """A container of the claim, noted as the agent notes it."""
        name = held.key.uid
        labels = {LABEL_UID: name, LABEL_ATTEMPT: "1"}
        plan = ContainerPlan(
            name, IMAGE, labels, entrypoint=list(program), command=[], mounts=tuple(mounts), network="host"
        )
        container = self.driver.create(plan, f"{name}-spare")
        self.parts.write(held, stage=Stage.CREATED, container_id=container)
        return container

    def ended(self, container: str) -> Facts:
        end = time.monotonic() + END_S
        while True:
            facts = self.driver.inspect(container)
            if facts.ended:
                return facts
            if time.monotonic() > end:
                raise TimeoutError(container)
            time.sleep(0.03)

    def output(self, container: str) -> str:
        """What its program printed, when it is over."""
        self.ended(container)
        return self.driver.log_rest(container, 65536).data.decode()

    def remove(self, held: Held) -> None:
        if held.record.container_id is not None:
            self.driver.remove(held.record.container_id, True)
        self.mounting.release(held.key)
        self.parts.journal.forget(held.key)
