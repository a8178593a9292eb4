"""An agent at rest on a lab node with 8 cards: CPU of one core, memory with all children, and what a beat weighs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.measure import Figure, Spread, cpu_seconds_fine, family, pss_mib
from tests.demo import fleet
from tests.faults.server_proxy import ServerProxy
from tests.lab import Lab, places
from tests.lab.control_plane import ControlPlane
from tests.lab.process import Progress

SECONDS = float(os.environ.get("BENCH_REST_S", "120"))
CARDS = 8


def measure() -> list[Figure]:
    lab = Lab.up(nodes=1, cards=CARDS)
    node = lab.node(1)
    plane = ControlPlane()
    builds = fleet.agent_builds(Progress())
    plane.start()
    fleet.publish_builds(plane, builds)
    host, _, port = plane.listen.rpartition(":")
    proxy = ServerProxy((host, int(port)), places.HOST_ADDRESS, places.port(9))
    fleet.install(plane, node, proxy.url)
    fleet.wait_online(plane, 1, CARDS)
    inside = node.run(["systemctl", "show", "-p", "MainPID", "--value", "heterofleet-agent"]).stdout.strip()
    agent = _outer_pid(node.pid, int(inside))
    bare = subprocess.Popen([sys.executable, str(Path(__file__).with_name("bare_loop.py")), f"{plane.url}/healthz"])
    try:
        time.sleep(90)  # the start is over: first scans, first collections, each loop well once (it is told then)
        began = time.monotonic()
        first, first_bare = cpu_seconds_fine(family(agent)), cpu_seconds_fine([bare.pid])
        memory = []
        told = len(proxy.seen("heartbeat"))
        while time.monotonic() - began < SECONDS:
            time.sleep(5)
            memory.append(pss_mib(family(agent)))
        elapsed = time.monotonic() - began
        share = (cpu_seconds_fine(family(agent)) - first) / elapsed * 100
        bare_share = (cpu_seconds_fine([bare.pid]) - first_bare) / elapsed * 100
        bare_memory = pss_mib([bare.pid])
        sizes = [len(call.body) for call in proxy.seen("heartbeat")[told:]]
    finally:
        proxy.close()
        bare.terminate()
        bare.wait(10)
    return [
        Figure(
            f"agent at rest with {CARDS} cards, {elapsed:.0f} s, CPU of one core",
            f"{share:.2f} % (bare loop of the same libraries {bare_share:.2f} %)",
            "below 1 %",
            share < 1,
        ),
        Figure(
            "agent at rest, PSS with all children",
            f"{max(memory):.1f} MiB (bare loop {bare_memory:.1f} MiB)",
            "below 60 MiB",
            max(memory) < 60,
        ),
        Figure(
            f"heartbeat when nothing changed, {len(sizes)} beats",
            f"{Spread.of(sizes).text('bytes', 0)}",
            "below 2048 bytes",
            bool(sizes) and max(sizes) < 2048,
        ),
    ]


def _outer_pid(init: int, inside: int) -> int:
    """The machine's pid of a process that the node numbers ``inside``; ``init`` is the node's process 1."""
    for pid in family(init):
        try:
            text = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        numbers = next(line for line in text.splitlines() if line.startswith("NSpid:")).split()[1:]
        if len(numbers) > 1 and int(numbers[1]) == inside:
            return pid
    raise RuntimeError(f"no process of the node has the number {inside}")
