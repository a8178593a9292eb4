"""What a heartbeat costs the server, against a bare route that parses the same body; statements per beat."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from runtime.protocol.codec import encode
from runtime.protocol.hardware import Disk, Gpu, GpuStats, Host
from runtime.protocol.heartbeat import AgentBuild, DockerState, Heartbeat, Slots, TaskHealth
from tests.bench.measure import Figure, Spread, cpu_seconds
from tests.lab.control_plane import ControlPlane
from tests.lab.process import wait_for

ROUNDS = 5
BEATS = 1500
NODES = 50
FEW, MANY, WINDOW_S = 300, 1500, 10.0
BARE = "127.0.0.1:3391"
OURS = "127.0.0.1:3390"


def beat(node: int, seq: int, full: bool) -> dict[str, Any]:
    """A beat of a node with 8 cards and 8 tasks: 6 KB when full."""
    cards = [
        Gpu(
            f"GPU-{node:04d}{card:04d}-5c6a-4d2e-9b7f-0123456789ab",
            "nvidia",
            card,
            "NVIDIA H100 80GB HBM3",
            "nvidia-h100-80gb-hbm3-80g",
            81559,
            f"00000000:{card:02X}:00.0",
            card // 4,
            "9.0",
            "550.54.15",
        )
        for card in range(8)
    ]
    body = Heartbeat(
        protocol=1,
        node_id=f"bench-{node}",
        instance_id=str(uuid.uuid5(uuid.NAMESPACE_DNS, f"bench-{node}")),
        run=1,
        seq=seq,
        fingerprint=f"{node:032x}",
        boot_id=str(uuid.uuid5(uuid.NAMESPACE_URL, f"bench-{node}")),
        sent_at="2026-01-01T00:00:00.000Z",
        agent=AgentBuild("0.1.0", "0123456789abcdef", "2026-01-01T00:00:00Z", False, "amd64", "3.11.2"),
        host=Host(
            f"bench-{node}", "Debian 12", "6.1.0", 96, 12.5, 1031000, 52000, disks=[Disk("/data", 7000000, 350000)]
        ),
        docker=DockerState(True, "26.1.3", ["runc", "nvidia"], "engine"),
        exec_mode="docker",
        slots=Slots(64, 8),
        gpus=cards if full else None,
        gpu_stats=[GpuStats(card.uuid, card.index, 41.0, 87.0, 70321, 512.5) for card in cards],
        live_task_ids=[f"bench-task-{node}-{task}" for task in range(8)],
        task_health=[
            TaskHealth(
                f"bench-task-{node}-{task}",
                str(uuid.uuid5(uuid.NAMESPACE_OID, f"{node}-{task}")),
                1,
                "running",
                "2026-01-01T00:00:00.000Z",
                True,
                True,
                container_id="c0ffee" * 10 + "abcd",
            )
            for task in range(8)
        ],
        digests={"gpus": "d1", "host": "d2"},
    )
    return encode(body, drop_none=True)  # type: ignore[no-any-return]


def send(address: str, key: str, bodies: list[tuple[dict[str, str], bytes]]) -> None:
    for headers, body in bodies:
        connection = http.client.HTTPConnection(address, timeout=10)
        # The client ends the connection, as ours does for every beat: both sides serve the same conversation.
        connection.request(
            "POST", "/api/v1/agent/heartbeat", body, {**headers, "X-API-Key": key, "Connection": "close"}
        )
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{address}: {answer.status} {text[:500]!r}")


def bodies(first_seq: int, count: int, full: bool) -> list[tuple[dict[str, str], bytes]]:
    made = []
    for number in range(count):
        body = beat(number % NODES, first_seq + number, full)
        headers = {
            "Content-Type": "application/json",
            "X-Node-Id": body["node_id"],
            "X-Instance-Id": body["instance_id"],
        }
        made.append((headers, json.dumps(body, separators=(",", ":")).encode()))
    return made


def statements(plane: ControlPlane) -> int:
    """The server's own count of database statements of every kind."""
    _, text = plane.request("GET", "/metrics")
    lines = [line for line in str(text).splitlines() if line.startswith("heterofleet_db_statements_total{")]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))


def statements_meanwhile(plane: ControlPlane, packed: list[tuple[dict[str, str], bytes]]) -> int:
    """Statements while these beats are sent, spread over a window of always the same length."""
    before = statements(plane)
    began = time.monotonic()
    for number, one in enumerate(packed):
        time.sleep(max(0.0, began + number * WINDOW_S / len(packed) - time.monotonic()))
        send(OURS, plane.key, [one])
    time.sleep(max(0.0, began + WINDOW_S - time.monotonic()))
    return statements(plane) - before


def measure() -> list[Figure]:
    plane = ControlPlane("bench-plane", listen=OURS, doorbell="")
    plane.start()
    bare = subprocess.Popen([sys.executable, str(Path(__file__).with_name("bare_route.py")), BARE])
    try:

        def bare_answers() -> object:
            try:
                send(BARE, "-", bodies(0, 1, True))
            except OSError as error:
                return error
            return True

        wait_for("the bare route answers", bare_answers, 20)
        pid = plane.pid
        assert pid is not None
        send(OURS, plane.key, bodies(1, NODES * 2, True))  # register, and warm both up
        send(BARE, "-", bodies(1, NODES * 2, True))
        ours, reference, seq = [], [], NODES * 2 + 1
        for _ in range(ROUNDS):
            packed = bodies(seq, BEATS, True)
            seq += BEATS
            began = cpu_seconds(pid)
            send(OURS, plane.key, packed)
            ours.append((cpu_seconds(pid) - began) / BEATS * 1e3)
            began = cpu_seconds(bare.pid)
            send(BARE, "-", packed)
            reference.append((cpu_seconds(bare.pid) - began) / BEATS * 1e3)
        few = statements_meanwhile(plane, bodies(seq, FEW, False))
        many = statements_meanwhile(plane, bodies(seq + FEW, MANY, False))
    finally:
        bare.terminate()
        bare.wait(10)
        plane.remove()
    ratios = Spread.of([one / other for one, other in zip(ours, reference)])
    size = len(bodies(0, 1, True)[0][1])
    return [
        Figure(
            f"heartbeat of {size} bytes, CPU against a bare route",
            f"{ratios.text('x')}; {Spread.of(ours).text('ms')} against {Spread.of(reference).text('ms')}",
            "at most 1.5 x",
            ratios.median <= 1.5,
        ),
        Figure(
            "database statements per beat, steady state",
            f"{(many - few) / (MANY - FEW):.3f} ({few} statements with {FEW} beats in {WINDOW_S:.0f} s, "
            f"{many} with {MANY} beats: the flusher's, about one batch a second)",
            "0",
            many - few < (MANY - FEW) * 0.01,
        ),
    ]
