"""A node with very many containers: real ones on its own engine, and the journal that belongs to them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runtime.agent.tasks.boot import boot_mark
from runtime.agent.tasks.journal import open_journal
from runtime.agent.tasks.records import ClaimRecord, Key, Stage
from runtime.protocol.tasks import TaskSpec
from tests.faults.engine_proxy import EngineProxy, container_of
from tests.integration.agent_tasks.agent_bench import ENDED, Agent, Plane
from tests.integration.waiting import until
from tests.lab import Node
from tests.lab.task_image import NAME, image

LIST, INSPECT = "GET /containers/json", "GET /containers/{id}/json"
AT_ONCE = 8


@dataclass(frozen=True)
class Seen:
    """What one reconciliation asked the engine: how many lists, which containers were inspected, and the seconds from
    its first call to the last of these. ``unreported``: the containers whose end nobody had told."""

    lists: int
    inspected: list[str]
    seconds: float
    unreported: list[str]


@contextmanager
def crowd(plane: Plane, node: Node, folder: Path, running: int, ended: int, unreported: int) -> Iterator[Seen]:
    """An agent that is started over so many containers. Of the ended ones all but ``unreported`` have told their end
    and are being removed; these few are real tasks of the plane, which ended while no agent was there."""
    node.load_image(image().archive(NAME))
    proxy = EngineProxy(node, "crowd.sock")
    agent: Agent | None = None
    try:
        agent = Agent(plane, folder, docker_host=f"unix://{proxy.path}", poll_interval_s=60, max_tasks=1000,
                      workers=16)  # fmt: skip
        tasks = [agent.submit("forever", network="host") for _ in range(unreported)]
        until("they all run", lambda: all(plane.task(task_id)["phase"] == "running" for task_id in tasks), 120)
        agent.kill()
        untold = node.docker("ps", "-aq", "--no-trunc", "--filter", "label=heterofleet.uid").stdout.split()
        node.docker("kill", "-s", "USR1", *untold)
        made = fill(node, agent, running, ended - unreported)
        try:
            until("all have ended", lambda: states(node).count("exited") == ended, 120)
            proxy.calls.clear()
            agent.start()
            until("all ends have arrived", lambda: all(plane.task(one)["status"] in ENDED for one in tasks), 120)
            calls = [call for call in list(proxy.calls) if call.kind in (LIST, INSPECT)]
            inspected = [str(container_of(call)) for call in calls if call.kind == INSPECT]
            last = max(call.done_at or call.at for call in calls)
            lists = len(calls) - len(inspected)
            yield Seen(lists, inspected, last - calls[0].at, untold)
            assert states(node).count("running") == running, "none of them was touched"
        finally:
            agent.kill()
            remove(node, made)
    finally:
        if agent is not None:
            agent.close()
        left = node.docker("ps", "-aq", "--filter", "label=heterofleet.uid").stdout.split()
        remove(node, left)
        proxy.close()


def fill(node: Node, agent: Agent, running: int, ended: int) -> list[str]:
    """Containers with the labels of claims, and these claims in the agent's journal; the containers' ids."""
    api = node.docker_client().api
    state = agent.folder / "state"
    plane_id = json.loads((state / "status.json").read_bytes())["control_plane_id"]
    instance = json.loads((state / "identity.json").read_bytes())["instance_id"]
    mark, now = boot_mark(), time.monotonic()

    def make(number: int) -> ClaimRecord:
        runs = number < running
        task_id = f"crowd-{number}"
        labels = {"control-plane": plane_id, "node": agent.node_id, "instance": instance, "task": task_id,
                  "uid": f"uid-{number}", "attempt": "1", "claim": f"token-{number}"}  # fmt: skip
        container = api.create_container(
            NAME,
            ["forever"] if runs else ["exit", "0"],
            labels={f"heterofleet.{name}": value for name, value in labels.items()},
            host_config=api.create_host_config(network_mode="none"),
        )["Id"]
        api.start(container)
        stage = Stage.RUNNING if runs else Stage.DONE
        spec = TaskSpec(name=task_id, image=NAME)
        return ClaimRecord(Key(f"uid-{number}", 1), task_id, plane_id, f"token-{number}", stage, spec,
                           container_id=container, asked_mark=mark, started_mark=mark, started_mono=now)  # fmt: skip

    with ThreadPoolExecutor(AT_ONCE) as pool:
        records = list(pool.map(make, range(running + ended)))
    journal = open_journal(state)
    for record in records:
        journal.save(record)
    journal.close()
    return [str(record.container_id) for record in records]


def states(node: Node) -> list[str]:
    listed = node.docker("ps", "-a", "--filter", "label=heterofleet.uid", "--format", "{{.State}}", timeout=300)
    return listed.stdout.split()


def remove(node: Node, containers: list[str]) -> None:
    for first in range(0, len(containers), 50):
        node.docker("rm", "-f", "-v", *containers[first : first + 50], timeout=600, check=False)
