"""An agent's memory after many tasks: what it has done before must cost nothing."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from tests.bench.measure import Figure, family, pss_mib
from tests.integration.agent_tasks.agent_bench import ENDED, Agent, Plane
from tests.integration.waiting import until
from tests.lab import Lab
from tests.lab.task_image import NAME, image

FEW = int(os.environ.get("BENCH_MEMORY_FEW", "100"))
MANY = int(os.environ.get("BENCH_MEMORY_MANY", "1000"))
AT_ONCE = 20
SETTLED_S = 45  # idle workers have ended by then
LEAST_S = 30


def measure() -> list[Figure]:
    lab = Lab.up(nodes=1)
    node = lab.node(1)
    node.load_image(image().archive(NAME))
    with tempfile.TemporaryDirectory(prefix="hf-bench-") as folder:
        plane = Plane(Path(folder) / "server")
        agent: Agent | None = None
        try:
            agent = Agent(plane, Path(folder) / "agent", docker_host=f"unix://{node.docker_socket}", poll_interval_s=5)
            began = time.monotonic()
            run(plane, agent, FEW)
            few = settled(agent.pid)
            run(plane, agent, MANY - FEW)
            many = settled(agent.pid)
            elapsed = time.monotonic() - began
        finally:
            if agent is not None:
                agent.close()
            plane.close()
            left = node.docker("ps", "-aq", "--filter", "label=heterofleet.uid").stdout.split()
            if left:
                node.docker("rm", "-f", "-v", *left)
    return [
        Figure(
            f"agent's PSS after {MANY} tasks against after {FEW}",
            f"{many:.1f} MiB against {few:.1f} MiB ({100 * (many / few - 1):+.1f} %), in {elapsed:.0f} s",
            "within 5 %",
            many <= 1.05 * few,
        )
    ]


def run(plane: Plane, agent: Agent, count: int) -> None:
    """So many short tasks with output, variables and different ends, some of them at once; all are over after it."""
    left: set[str] = set()
    for number in range(count):
        words = ("print", "x" * 200, "exit", str(number % 3))
        # The host's network costs the engine least: it is the agent that is looked at.
        left.add(agent.submit(*words, env={"SECRET": f"value-{number}-of-a-secret"}, network="host"))
        if len(left) >= AT_ONCE:
            left = fewer(plane, left)
    until("all have ended", lambda: not under_way(plane, left), 300)


def fewer(plane: Plane, ids: set[str]) -> set[str]:
    """Those that are still under way once one of them is not."""
    until("one of them ends", lambda: len(under_way(plane, ids)) < len(ids), 300)
    return under_way(plane, ids)


def under_way(plane: Plane, ids: set[str]) -> set[str]:
    return {task_id for task_id in ids if plane.task(task_id)["status"] not in ENDED}


def settled(pid: int) -> float:
    """The least PSS of the agent and its children in some time of rest, in MiB."""
    time.sleep(SETTLED_S)
    seen = []
    for _ in range(LEAST_S // 5):
        time.sleep(5)
        seen.append(pss_mib(family(pid)))
    return min(seen)
