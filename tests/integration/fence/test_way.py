"""A task's whole way on the machine's own engine, with somebody who changes its folders in the worst moments."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Optional

import pytest

from runtime.agent.drivers.docker import DockerDriver
from runtime.agent.drivers.driver import ContainerPlan
from runtime.agent.hardware.inventory import GpuSnapshot
from runtime.agent.link.seen import SeenRevisions
from runtime.agent.settings import AgentSettings
from runtime.agent.tasks.executor import Executor
from runtime.agent.tasks.journal import open_journal
from runtime.agent.tasks.pins import Pins
from runtime.agent.tasks.records import Key
from runtime.protocol.states import Driver, Status
from runtime.protocol.tasks import LogChunk, Task, TaskSpec, TaskUpdate, Volume
from tests.integration.agent_tasks.agent_bench import load_task_image
from tests.integration.fence.rig import IMAGE
from tests.integration.fence.yard import TRAP, Yard

LONG_GRACE_S = 3600.0
END_S = 60.0
UID = "0f3cde1e-0000-4000-8000-00000000000f"


class Watched(DockerDriver):
    """The real engine; ``created`` and ``starting`` are called between the agent's check and the engine's deed."""

    def __init__(self, created: Callable[[], None], starting: Callable[[], None]) -> None:
        super().__init__()
        self._created, self._starting = created, starting
        self.started: list[str] = []

    def create(self, plan: ContainerPlan, spare_name: str) -> str:
        container = super().create(plan, spare_name)
        self._created()
        return container

    def start(self, container_id: str) -> None:
        self._starting()
        self.started.append(container_id)
        super().start(container_id)


class OneTask:
    """A control plane that has one task, and waits for its end."""

    control_plane_id = "fence-way"

    def __init__(self, spec: TaskSpec) -> None:
        self.seen = SeenRevisions()
        self._task = Task("fence-way", UID, Status.SCHEDULED, 1, node_id="n", spec=spec)
        self.end: Optional[TaskUpdate] = None
        self.ended = threading.Event()

    def scheduled_tasks(self, limit: int) -> list[Task]:
        return [self._task]

    def task(self, task_id: str, token: Optional[str] = None) -> Task:
        return self._task

    def post_logs(self, task_id: str, chunk: LogChunk) -> None:
        """Nobody reads it."""

    def update_task(self, task_id: str, update: TaskUpdate) -> Task:
        self._task = Task("fence-way", UID, update.status, 1, node_id="n", spec=self._task.spec)
        if update.status is not Status.RUNNING:
            self.end = update
            self.ended.set()
        return self._task


@pytest.fixture
def run(yard: Yard, lab: Any) -> Iterator[Callable[..., tuple[TaskUpdate, Watched]]]:
    load_task_image()
    executors: list[Executor] = []

    def run(
        *command: str, created: Callable[[], None] = lambda: None, starting: Callable[[], None] = lambda: None
    ) -> tuple[TaskUpdate, Watched]:
        spec = TaskSpec("way", image=IMAGE, command=list(command), stop_grace_s=LONG_GRACE_S,
                        volumes=[Volume(str(yard.good), "/job")])  # fmt: skip
        driver, server = Watched(created, starting), OneTask(spec)
        state = yard.root / "state"
        state.mkdir()
        settings = AgentSettings(
            volumes_allow=[str(yard.data)], state_dir=str(state), disk_min_free_mib=0, poll_interval_s=0.5
        )
        identity: Any = SimpleNamespace(node_id="n", instance_id="i", booted=False)
        client: Any = server
        executor = Executor(
            settings, client, {Driver.DOCKER: driver}, open_journal(state), identity, lambda: GpuSnapshot(gpus=[])
        )
        executors.append(executor)
        executor.start()
        executor.wake()
        assert server.ended.wait(END_S), executor.task_health()
        assert server.end is not None
        return server.end, driver

    yield run
    for executor in executors:
        executor.stop(10.0)
    Pins().release(Key(UID, 1))
    left = subprocess.run(
        ["docker", "ps", "-aq", "--filter", f"label=heterofleet.uid={UID}"], capture_output=True, text=True
    )
    for container in left.stdout.split():
        subprocess.run(["docker", "rm", "-f", "-v", container], capture_output=True)


def trap(yard: Yard) -> Callable[[], None]:
    """Root itself puts the trap where the folder is held: nobody else can."""

    def put() -> None:
        place = Pins().place(Key(UID, 1), 0)
        subprocess.run(["umount", place], check=True)
        subprocess.run(["mount", "--bind", yard.out, place], check=True)

    return put


def exchange(yard: Yard) -> Callable[[], None]:
    def put() -> None:
        yard.good.rename(yard.data / "aside")
        yard.good.symlink_to(yard.out)

    return put


Run = Callable[..., tuple[TaskUpdate, Watched]]


@pytest.mark.parametrize("moment", ["created", "starting"])
def test_the_name_is_exchanged(yard: Yard, run: Run, moment: str) -> None:
    end, _ = run("cat", "/job/marker", **{moment: exchange(yard)})
    assert (end.status, end.exit_code) == (Status.COMPLETED, 0)
    assert TRAP not in (end.log_tail or "")
    assert yard.alarm.rung() == []


def test_what_is_held_is_exchanged_before_the_start(yard: Yard, run: Run) -> None:
    end, driver = run("cat", "/job/marker", created=trap(yard))
    assert (end.status, end.reason, end.exit_code) == (Status.FAILED, "volume_rejected", None)
    assert "swapped after the check" in (end.error or "")
    assert (driver.started, yard.alarm.rung()) == ([], [])


def test_what_is_held_is_exchanged_at_the_start(yard: Yard, run: Run) -> None:
    """Noticed only when it runs, and ended then."""
    end, driver = run("forever", starting=trap(yard))
    assert (end.status, end.reason) == (Status.FAILED, "volume_rejected")
    assert len(driver.started) == 1
    assert yard.alarm.rung() == []
