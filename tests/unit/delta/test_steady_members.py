"""What a beat leaves out as unchanged, from the composer on the node to the record on the server."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from runtime.agent.content import card_members
from runtime.agent.hardware.inventory import GpuSnapshot
from runtime.agent.link.beat import Composer, Content
from runtime.protocol.codec import decode, encode
from runtime.protocol.hardware import Disk, Gpu, GpuCapability, GpuDetection, GpuStats, Host
from runtime.protocol.heartbeat import (
    STEADY,
    UNCHANGING,
    AgentBuild,
    DockerState,
    Heartbeat,
    HeartbeatAnswer,
    LoopState,
    ModelsScan,
    Slots,
)
from runtime.server.services.held import Held, merge

WHO = {
    "node_id": "gpu-a",
    "instance_id": "11111111-aaaa-bbbb-cccc-000000000001",
    "fingerprint": "0" * 32,
    "boot_id": "22222222-aaaa-bbbb-cccc-000000000001",
    "run": 12,
    "sent_at": "2026-01-01T00:00:00.000Z",
    "seen_revision": 8812,
    "seen_control_plane_id": "33333333-aaaa-bbbb-cccc-000000000001",
}
UUIDS = [f"GPU-0000000{number}-aaaa-bbbb-cccc-000000000001" for number in range(8)]
VENDORS = ["musa", "hygon", "cambricon", "biren", "ascend", "kunlun", "iluvatar", "nvidia", "metax", "enflame"]
LOOPS = [f"loop-of-{number}" for number in range(10)]
TWO_KIB = 2048


def members(**changed: Any) -> dict[str, Any]:
    """All that a node with eight cards says."""
    cards = GpuSnapshot(
        gpus=[Gpu(uuid, "nvidia", n, "NVIDIA H100 80GB HBM3", memory_total_mib=81559) for n, uuid in enumerate(UUIDS)],
        stats=[GpuStats(uuid, n, 31 + n, 0, 4, 70.5 + n) for n, uuid in enumerate(UUIDS)],
        detection=[GpuDetection(name, name == "nvidia", f"{name} was looked for in five places") for name in VENDORS],
        capabilities=[GpuCapability(uuid, False, False) for uuid in UUIDS],
        holders=[],
    )
    said = {
        "agent": AgentBuild(
            *("1.4.2", "a1b2c3d4e5f6", "2026-01-01T00:00:00Z", False, "amd64", "3.11.2"),
            loops=[LoopState(name, "2026-01-01T00:00:00.000Z") for name in LOOPS],
        ),
        "host": Host(
            *("node", "Debian GNU/Linux 12", "6.1.0", 96, 1.5, 515_000, 9_000, ["aa:bb:cc:dd:ee:ff"], ["10.0.0.1"]),
            mgmt_addr="10.0.0.1",
            disks=[Disk(path, 900_000, 800_000, 58_000_000) for path in ("/var/lib/docker", "/var/lib/heterofleet")],
            uptime_s=1_000_000,
        ),
        "docker": DockerState(True, "26.1.4", ["io.containerd.runc.v2", "nvidia", "runc"], "4" * 36),
        "exec_mode": "docker",
        "drivers": ["docker"],
        "slots": Slots(64, 0),
        "labels": {"rack": "a1"},
        "images": ["registry/one:1"],
        "engines": [],
        "discovered_models": [],
        "models_scan": ModelsScan("2026-01-01T00:00:00.000Z"),
        "live_task_ids": [],
        "task_health": [],
        "foreign": [],
        "orphans": [],
        "gpu_holders": [],
        **card_members(cards),
    }
    return {**said, **changed}


def answer(*, keeps: tuple[str, ...] = STEADY, send_full: list[str] | None = None) -> HeartbeatAnswer:
    return HeartbeatAnswer(True, "cp", 7, "2026-01-01T00:00:00Z", keeps=list(keeps), send_full=send_full or [])


def sent(beat: Heartbeat) -> bytes:
    return json.dumps(encode(beat, drop_none=True), separators=(",", ":")).encode()


def exchange(composer: Composer, held: Held, said: dict[str, Any], keeps: tuple[str, ...] = STEADY) -> bytes:
    """One beat through the wire's JSON; returns what was sent."""
    beat = composer.compose(WHO, Content(said))
    body = sent(beat)
    composer.accepted(beat, answer(keeps=keeps, send_full=merge(held, decode(Heartbeat, json.loads(body)))))
    return body


def known(held: Held) -> dict[str, Any]:
    assert held.beat is not None
    return {name: getattr(held.beat, name) for name in STEADY}


def test_an_unchanged_beat_of_eight_cards_is_small_and_says_all_the_same() -> None:
    composer, held, said = Composer(), Held("gpu-a"), members()
    sizes = [len(exchange(composer, held, said)) for _ in range(5)]
    assert sizes[0] > TWO_KIB and max(sizes[2:]) < TWO_KIB, sizes
    assert known(held) == {name: said[name] for name in STEADY}
    assert set(held.sections) == {name for name in UNCHANGING if said.get(name) is not None}


def test_what_changes_is_sent_and_nothing_else() -> None:
    composer, held, said = Composer(), Held("gpu-a"), members()
    for _ in range(3):
        exchange(composer, held, said)
    hot = [dataclasses.replace(stats, temperature_c=90.0) for stats in said["gpu_stats"]]
    body = json.loads(exchange(composer, held, members(gpu_stats=hot)))
    assert set(STEADY) & set(body) == {"gpu_stats"}
    assert known(held) == {**{name: said[name] for name in STEADY}, "gpu_stats": hot}


def test_a_server_that_does_not_say_that_it_keeps_them_gets_all_of_them() -> None:
    composer, held, said = Composer(), Held("gpu-a"), members()
    for _ in range(4):
        body = json.loads(exchange(composer, held, said, keeps=()))
        assert set(STEADY) <= set(body) and not set(STEADY) & set(body["digests"])


@pytest.mark.parametrize("trouble", ["failed", "restarted"])
def test_after_trouble_all_is_there_again(trouble: str) -> None:
    composer, held, said = Composer(), Held("gpu-a"), members()
    for _ in range(3):
        exchange(composer, held, said)
    if trouble == "failed":
        composer.failed()
    else:
        held = Held("gpu-a")  # and of what the database holds nothing is here yet
        exchange(composer, held, said)
        assert known(held) == dict.fromkeys(STEADY)
    assert set(STEADY) <= set(json.loads(exchange(composer, held, said)))
    assert known(held) == {name: said[name] for name in STEADY}


def test_what_is_not_held_keeps_the_last_known_but_no_measurement() -> None:
    held, said = Held("gpu-a"), members()
    merge(held, Heartbeat(1, seq=1, **WHO, **{name: said[name] for name in STEADY}))
    asked = merge(held, Heartbeat(1, seq=2, **WHO, digests=dict.fromkeys(STEADY, "another")))
    assert asked == list(STEADY)
    assert known(held) == {**{name: said[name] for name in STEADY}, "gpu_stats": None}


def test_a_member_in_neither_is_unknown() -> None:
    composer, held, said = Composer(), Held("gpu-a"), members()
    for _ in range(3):
        exchange(composer, held, said)
    exchange(composer, held, members(docker=None, gpu_stats=None))
    assert (known(held)["docker"], known(held)["gpu_stats"]) == (None, None)
