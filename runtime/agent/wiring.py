"""The one place that builds all parts of a real agent, and tells each of those that it needs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.agent.app import Agent, Parts
from runtime.agent.card_probe.gate import Gate
from runtime.agent.card_probe.memory import Memory
from runtime.agent.card_probe.runner import CardProbes
from runtime.agent.drivers.docker import DockerDriver
from runtime.agent.drivers.process.build import process_driver
from runtime.agent.engines.router import Router
from runtime.agent.engines.watch import EngineWatch
from runtime.agent.handover import Handover
from runtime.agent.hardware.detectors import all_detectors
from runtime.agent.hardware.host import HostReader, HostWatch
from runtime.agent.hardware.infiniband.adapters import by_adapter
from runtime.agent.hardware.infiniband.watch import AdapterWatch
from runtime.agent.hardware.inventory import Inventory
from runtime.agent.hardware.tools import ToolRunner
from runtime.agent.instructions.runner import InstructionRunner
from runtime.agent.link.client import ServerClient
from runtime.agent.link.heartbeat import FIRST_INTERVAL_S
from runtime.agent.link.identity import take_identity
from runtime.agent.loop import Loop
from runtime.agent.models.look import look_at
from runtime.agent.models.scanner import ModelScanner
from runtime.agent.notify import Notifier
from runtime.agent.state import StateError, StateLock, make_state_dir
from runtime.agent.tasks.boot import boot_mark
from runtime.agent.tasks.checks import own_places
from runtime.agent.tasks.executor import Executor
from runtime.agent.tasks.journal import open_journal
from runtime.agent.tasks.ownership import keep_to_machine, work_of
from runtime.protocol.masking import Masker
from runtime.protocol.states import Driver as DriverName

if TYPE_CHECKING:
    from runtime.agent.drivers.driver import Driver
    from runtime.agent.settings import AgentSettings


def build(settings: AgentSettings, masker: Masker, *, adopt_node_id: bool = False) -> tuple[Agent, StateLock]:
    """All parts of a real agent; ``masker`` is the log's, and learns the tasks' secrets.

    Raises StateError and IdentityError; nothing has been started then."""
    notifier = Notifier()
    handover = Handover(notifier)
    state_dir = Path(settings.state_dir)
    make_state_dir(state_dir)
    lock = StateLock(state_dir)
    try:
        journal = open_journal(state_dir)
    except OSError as error:
        raise StateError(f"state_dir: {error}, or set state_dir to a folder that can be written") from None
    docker = DockerDriver(settings.docker_host, handover.keep)
    runner = ToolRunner()
    processes = process_driver(settings, runner, boot_mark(), own_places(settings))
    drivers: dict[DriverName, Driver] = {DriverName.PROCESS: processes, DriverName.DOCKER: docker}
    identity = take_identity(
        state_dir, settings.node_id, holds_work=lambda name: work_of(name, journal, drivers), adopt=adopt_node_id
    )
    keep_to_machine(journal, identity.parts, copied=identity.copied)
    client = ServerClient(settings, identity)
    beats: list[Loop] = []

    def more_is_known() -> None:
        # Cards and engine are told within a second of the start, not with the next beat.
        for loop in beats:
            loop.wake()

    inventory = Inventory(
        all_detectors(runner, settings.hardware.tools),
        runner,
        node_id=identity.node_id,
        state_dir=state_dir,
        mode=settings.hardware.detect,
        virtual=settings.hardware.virtual_cards,
        on_first=more_is_known,
    )

    memory = Memory(state_dir)
    gate = Gate(inventory.snapshot, memory.read()) if settings.hardware.probe_image is not None else None
    snapshot = inventory.snapshot if gate is None else gate.snapshot

    def beat_s() -> float:
        return beats[0].interval_s if beats else FIRST_INTERVAL_S

    models = ModelScanner(runner, settings.model_scan_dirs, state_dir, interval=beat_s, on_first=more_is_known)
    router = Router(settings, docker.images.present, partial(look_at, runner), lambda: models.snapshot().models)
    executor = Executor(
        settings,
        client,
        drivers,
        journal,
        identity,
        snapshot,
        masker=masker,
        on_engine_known=more_is_known,
        route=router.route,
    )
    engines = EngineWatch(
        settings.engine_priorities, docker.images.list, executor.servers, interval=beat_s, on_first=more_is_known
    )
    probes = None
    if gate is not None:
        probes = CardProbes(settings.hardware, gate, memory, docker, identity.node_id, executor.card_users)
    adapters = AdapterWatch(runner, by_adapter(settings.fabrics), on_first=more_is_known)
    instructions = InstructionRunner(client, docker.images, journal, identity)
    reader = HostReader(
        server=(client.address.host, client.address.port),
        mgmt_addr=settings.mgmt_addr,
        paths=[settings.state_dir, *settings.volumes_allow],
        engine_root=executor.engine_root,
    )
    agent = Agent(
        Parts(
            settings,
            identity,
            client,
            inventory,
            HostWatch(reader),
            executor,
            instructions,
            models,
            engines,
            notifier,
            gate,
            probes,
            journal=journal.health,
            masker=masker,
            adapters=adapters,
        )
    )
    handover.drain(settings.pull_total_s)
    beats.append(agent.heartbeats.loop)
    return agent, lock
