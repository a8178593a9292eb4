"""Why a card is not given out: a table of what beats said, and the sentences that come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from runtime.protocol.hardware import Gpu, GpuCollectFailure, GpuDetection, GpuHolder
from runtime.protocol.heartbeat import Foreign, Heartbeat
from runtime.protocol.nodes import CardHealth
from runtime.server.services.card_troubles import Dirt, dirt_of, held_by_containers, troubles
from runtime.server.services.cards import Cards, Limits, Observation, advance

A, B = Gpu("GPU-a", "nvidia", 0), Gpu("GPU-b", "nvidia", 1)
B1 = Gpu("MIG-b1", "nvidia", parent_uuid="GPU-b")
NOON = "2026-01-01T12:00:00.000Z"
AT = 1767268800.0
WELL = Observation([A, B], at=AT - 60)
FAILS = Observation([A, B], failures=[GpuCollectFailure("GPU-b", reason="GPU is lost (NVML code 15)")], at=AT)
GONE = Observation([A], at=AT)
KEYLESS = [GpuDetection("nvidia", True, loss_detection="none")]


@pytest.mark.parametrize(
    ("beats", "dirty", "card", "text", "help_"),
    [
        ([WELL], {}, "GPU-b", None, ""),
        (
            [WELL, FAILS],
            {},
            "GPU-b",
            f"card GPU-b is suspect since {NOON} (GPU is lost (NVML code 15))",
            "with the next beat",
        ),
        ([WELL, *[FAILS] * 3], {}, "GPU-b", f"card GPU-b is lost since {NOON} (GPU is lost (NVML code 15))", "doctor"),
        ([WELL, *[FAILS] * 3], {}, "GPU-a", None, ""),
        (
            [WELL, *[FAILS] * 3],
            {},
            "MIG-b1",
            f"card MIG-b1 is lost since {NOON} (its card GPU-b: GPU is lost (NVML code 15))",
            "doctor",
        ),
        (
            [WELL, *[FAILS] * 3, WELL, WELL],
            {},
            "GPU-b",
            f"card GPU-b is lost since {NOON} (GPU is lost (NVML code 15); well for 2 beats by now)",
            "card_back_after_beats",
        ),
        ([WELL, *[GONE] * 3], {}, "GPU-b", f"card GPU-b is lost since {NOON} (a list that worked lacks it)", "lspci"),
        ([], {}, "GPU-b", "card GPU-b is unknown (no working list", "doctor"),
        (
            [Observation([A, B], detection=KEYLESS), Observation([A], detection=KEYLESS, at=AT)],
            {},
            "GPU-a",
            f"card GPU-a is suspect since {NOON} (1 of 2 nvidia cards are listed",
            "bring the missing card back",
        ),
        (
            [WELL],
            {"GPU-b": Dirt("process 7", AT)},
            "GPU-b",
            f"card GPU-b is dirty since {NOON} (held by process 7)",
            "end",
        ),
        (
            [WELL],
            {"GPU-b": Dirt("process 7", AT)},
            "MIG-b1",
            f"card MIG-b1 is dirty since {NOON} (its card GPU-b is held by process 7)",
            "end",
        ),
    ],
)
def test_what_is_wrong(
    beats: Sequence[Observation], dirty: Mapping[str, Dirt], card: str, text: str | None, help_: str
) -> None:
    cards = Cards()
    for seen in beats:
        cards, _ = advance(cards, seen, Limits(3, 3))
    found = troubles(cards, [A, B, B1], dirty).get(card)
    if text is None:
        assert found is None
        return
    assert found is not None and found.text.startswith(text)
    assert help_ in found.help


def test_who_else_holds_a_card_and_since_when() -> None:
    foreign = held_by_containers([Foreign("c" * 64, task_id="t9", gpus=["GPU-a"]), Foreign("d" * 64)])
    holders = [
        GpuHolder("GPU-b", 7, "python", container_id="e" * 64, ours=False),
        GpuHolder("GPU-b", 8, ours=False),
        GpuHolder("GPU-c", memory_mib=900, ours=False),
        GpuHolder("GPU-d", 9, ours=True),
        GpuHolder("GPU-e", 9),
    ]
    beat = Heartbeat(1, "gpu-a", "i", 1, 1, gpu_holders=holders)
    found = dirt_of(beat, foreign, {"GPU-b": Dirt("process 7", 5.0)}, AT)
    assert found == {
        "GPU-a": Dirt("container cccccccccccc of task t9, which is not this node's", AT),
        "GPU-b": Dirt("process 7 (python) in container eeeeeeeeeeee and process 8", 5.0),
        "GPU-c": Dirt("900 MiB in use by no process", AT),
    }
    many = [GpuHolder("GPU-a", pid, ours=False) for pid in range(1, 6)]
    (dirt,) = dirt_of(Heartbeat(1, "gpu-a", "i", 1, 1, gpu_holders=many), {}, {}, AT).values()
    assert dirt.who == "process 1 and process 2 and process 3 and 2 more"


def test_a_well_card_has_no_entry() -> None:
    cards, _ = advance(Cards(), WELL, Limits())
    assert troubles(cards, [A, B, B1], {}) == {}
    assert {one.health for one in troubles(Cards(), [A], {}).values()} == {CardHealth.UNKNOWN}
