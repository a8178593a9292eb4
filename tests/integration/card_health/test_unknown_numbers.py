"""What was not measured is absent in the heartbeat, null in the API and no line in the metrics: never 0."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime.agent.content import card_members
from runtime.agent.hardware.inventory import GpuSnapshot
from runtime.agent.link.beat import Composer, Content
from runtime.protocol.codec import encode
from runtime.protocol.hardware import Disk, Gpu, GpuCapability, GpuHolder, GpuStats, Hca, Host
from runtime.server.services.history import STEP_S
from tests.integration.server_core.plane import Agent, Plane, running

BLIND = "GPU-blind"
IDENTITY = {"protocol", "run", "seq"}
"""Numbers of the beat itself."""


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """(path, number) of every number in a JSON value."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner, path)
    else:
        yield path, value


def blind_beat() -> dict[str, Any]:
    """What a node says that can list its parts and measure nothing of them."""
    cards = GpuSnapshot(
        gpus=[Gpu(BLIND, "nvidia")],
        stats=[GpuStats(BLIND)],
        capabilities=[GpuCapability(BLIND)],
        holders=[GpuHolder(BLIND)],
    )
    said = {"host": Host("blind", disks=[Disk("/")]), "hcas": [Hca("mlx5_0")], "gpu_holders": cards.holders}
    beat = Composer().compose(
        {"node_id": "gpu-a", "instance_id": "i", "run": 1}, Content({**said, **card_members(cards)})
    )
    encoded: dict[str, Any] = encode(beat, drop_none=True)
    return encoded


def sample(plane: Plane) -> None:
    """What the server does once a minute."""
    plane.parts.history.add(int(time.time() // STEP_S), plane.parts.presence.gpu_stats("gpu-a"))


def test_no_number_out_of_nothing(tmp_path: Path) -> None:
    said = blind_beat()
    assert {path for path, _ in numbers(said)} == IDENTITY
    with running(tmp_path) as plane:
        agent = Agent(plane)
        members = {name: value for name, value in said.items() if name not in agent.body()}
        assert agent.beat(**members).status == 200
        sample(plane)

        (card,) = plane.operator("GET", "/api/v1/gpus").body["gpus"]
        assert card["uuid"] == BLIND and list(numbers(card)) == []
        assert {"temperature_c", "utilization_pct", "memory_used_mib", "power_w", "tier"} <= card.keys()
        assert card["tier"] is None
        node = plane.operator("GET", "/api/v1/nodes/gpu-a").body
        assert {path for path, _ in numbers(node)} <= {"run", "clock_skew_s"}
        assert plane.operator("GET", f"/api/v1/gpus/{BLIND}/history").body["points"] == []
        text = plane.operator("GET", "/metrics").raw.decode()
        lines = [line for line in text.splitlines() if BLIND in line]
        assert lines and all(line.startswith("heterofleet_gpu_health{") for line in lines)


def test_a_measured_zero_is_a_zero(tmp_path: Path) -> None:
    with running(tmp_path) as plane:
        agent = Agent(plane)
        stats = [{"uuid": BLIND, "temperature_c": 0, "utilization_pct": 0}]
        assert agent.beat(gpus=[{"uuid": BLIND, "vendor": "nvidia"}], gpu_stats=stats).status == 200
        sample(plane)
        card = plane.operator("GET", f"/api/v1/gpus/{BLIND}").body
        assert dict(numbers(card)) == {"temperature_c": 0, "utilization_pct": 0}
        (point,) = plane.operator("GET", f"/api/v1/gpus/{BLIND}/history").body["points"]
        assert dict(numbers(point)) == {"temperature_c": 0, "utilization_pct": 0}
        text = plane.operator("GET", "/metrics").raw.decode()
        assert "heterofleet_gpu_temperature_celsius" in str([line for line in text.splitlines() if BLIND in line])
        assert plane.operator("GET", "/api/v1/gpus/GPU-nobody/history").code == "gpu_not_found"
