"""After many tasks of every kind of end an agent holds nothing of them; an hour or a year of work costs no memory."""

from __future__ import annotations

import gc
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.app import Agent
from runtime.agent.settings import AgentSettings
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.records import ClaimRecord, Key
from runtime.agent.wiring import build
from runtime.protocol.masking import Masker
from runtime.protocol.tasks import TaskSpec
from tests.integration.agent_tasks.agent_bench import Plane
from tests.integration.waiting import until
from tests.lab import engine

SECRET = "a-secret-that-nobody-keeps"


@pytest.fixture
def inside(plane: Plane, tmp_path: Path) -> Iterator[tuple[Agent, Masker, str]]:
    """The real agent with all its parts, in this process, so that what it holds can be counted."""
    node_id = f"n-{secrets.token_hex(4)}"
    settings = AgentSettings(
        server_url=f"http://127.0.0.1:{plane.port}",
        api_key=plane.key,
        state_dir=str(tmp_path / "state"),
        node_id=node_id,
        disk_min_free_mib=10,
        volumes_allow=[str(tmp_path / "data")],
        poll_interval_s=1,
        reconcile_interval_s=1,
        pull_attempts=1,
    )
    masker = Masker()
    agent, lock = build(settings, masker)
    agent.start()
    until("the node is registered", lambda: plane.call("GET", f"/nodes/{node_id}")[0] == 200)
    yield agent, masker, node_id
    agent.stop()
    lock.release()
    left = engine.docker("ps", "-aq", "--filter", f"label=heterofleet.node={node_id}").split()
    if left:
        engine.docker("rm", "-f", "-v", *left)


def test_nothing_of_a_task_is_held_when_it_is_over(
    plane: Plane, inside: tuple[Agent, Masker, str], tmp_path: Path
) -> None:
    agent, masker, node_id = inside
    before = left_over()
    data = tmp_path / "data"
    data.mkdir()
    volume = {"host": str(data), "container": "/data", "read_only": False}
    probe = {"type": "tcp", "port": 8080, "interval_s": 0.2}

    def submit(*words: str, **spec: Any) -> str:
        return plane.submit(node_id, *words, **{"env": {"TOKEN": SECRET}, **spec})

    ending = [submit("print", "x", "exit", str(code)) for code in (0, 3)]
    ending += [
        submit("sleep", "1", volumes=[volume], timeout_s=3600),
        submit("ignore-term", "forever", timeout_s=1, stop_grace_s=0),
        submit("exit", "0", image="hf-lab/no-such-image:1"),
        submit("exit", "0", volumes=[{**volume, "host": str(data / "missing")}]),
        submit(entrypoint=["/no/such/program"]),
    ]
    stopped = [submit("on-term", "0", "listen", "8080", "forever", health=probe, start_timeout_s=60), submit("forever")]
    for task_id in stopped:
        plane.phase(task_id, "running", 60)
        plane.stop_task(task_id)
    gone = submit("forever")
    plane.phase(gone, "running")
    status, _ = plane.call("DELETE", f"/tasks/{gone}")
    assert status == 202
    ends = Counter(plane.ended(task_id, 120)["reason"] for task_id in (*ending, *stopped))
    assert set(ends) == {
        "exited",
        "timeout",
        "image_pull_failed",
        "volume_rejected",
        "start_failed",
        "stopped_by_operator",
    }
    executor: Any = agent._parts.executor
    until("no claim is held", lambda: executor._claims.all() == [], 60)
    parts = executor._parts
    assert parts.journal.claims() == [] and parts.journal.undelivered() == 0
    until("no timer of a task waits", lambda: [name for name in parts.timers._current if isinstance(name, tuple)] == [])
    until("no work waits", lambda: not any(pool._work or pool._busy for pool in pools(parts)))
    assert masker.text(SECRET) == SECRET, "its secrets are forgotten, too"
    keys = [Key(plane.task(task_id)["uid"], 1) for task_id in (*ending, *stopped)]
    assert not any(parts.pins.exists(key) for key in keys)
    # What other tests of this session hold for themselves was there before.
    until("nothing refers to one any more", lambda: left_over() <= before)
    assert executor._intents.remembered == 0


def pools(parts: Any) -> list[Any]:
    return [parts.steps, parts.pulls, parts.reports, parts.probes, parts.removals]


def left_over() -> Counter[str]:
    """Objects of tasks that something still refers to, by their kind."""
    gc.collect()
    kinds = (Held, ClaimRecord, TaskSpec)
    return Counter(type(found).__name__ for found in gc.get_objects() if isinstance(found, kinds))
