"""Cards that are gone are remembered as such: over good lists, restarts, and until another card is in their place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Optional

import pytest

from runtime.agent.hardware.detector import Cards, CollectorError, Detection
from runtime.agent.hardware.inventory import Inventory
from runtime.agent.hardware.remembered import FILE, KEPT_S, CannotRead, Remembered, as_kept, read_remembered
from runtime.agent.hardware.report import report_of
from runtime.agent.hardware.tools import ToolRunner
from runtime.protocol.hardware import Gpu

ONE = Gpu("GPU-one", "nvidia", 0, pci_bus_id="00000000:17:00.0")
TWO = Gpu("GPU-two", "nvidia", 1, pci_bus_id="00000000:65:00.0")
SLICE = replace(TWO, uuid="MIG-a", parent_uuid="GPU-two")
OTHER = replace(TWO, uuid="GPU-other")
CHIP = replace(TWO, uuid="00000000:65:00.0/1")
NAMELESS = tuple(Gpu(f"kunlun-{number}", "kunlun", number) for number in range(3))
NAMED = tuple(replace(gpu, uuid=f"XPU-{gpu.index}") for gpu in NAMELESS)


@pytest.mark.parametrize(
    ("lists", "gone"),
    [
        pytest.param([(ONE, TWO), (ONE, TWO)], [], id="all are there"),
        pytest.param([(ONE, TWO, SLICE), (ONE,), (ONE,)], ["GPU-two"], id="gone over good lists, its slice with it"),
        pytest.param([(ONE, TWO, SLICE), (ONE, TWO)], [], id="slices come and go"),
        pytest.param([(ONE, TWO), (ONE,), (ONE, TWO)], [], id="back"),
        pytest.param([(ONE, TWO), (ONE,), (ONE, OTHER)], [], id="another in its place"),
        pytest.param([(TWO, CHIP), (TWO,)], [CHIP.uuid], id="one of two chips at one place"),
        pytest.param([NAMELESS, NAMELESS[:2]], ["kunlun-2"], id="a shorter list of cards without names"),
        pytest.param([NAMELESS, NAMED], [], id="cards that have names now"),
    ],
)
def test_what_is_gone(lists: list[tuple[Gpu, ...]], gone: list[str]) -> None:
    known = Remembered()
    for moment, gpus in enumerate(lists):
        known = known.after(gpus, ["nvidia", "kunlun"], float(moment))
    assert [one.gpu.uuid for one in known.gone] == gone
    assert all(one.since == 1.0 for one in known.gone)


def test_after_a_week_it_was_taken_out_and_other_vendors_cards_are_not_this_node_s() -> None:
    known = Remembered().after((ONE, TWO), ["nvidia"], 0.0).after((ONE,), ["nvidia"], 1.0)
    assert known.after((ONE,), ["nvidia"], KEPT_S).gone == known.gone
    assert known.after((ONE,), ["nvidia"], KEPT_S + 2).gone == ()
    assert known.after((), ["musa"], 2.0).gone == ()


def test_it_is_kept(tmp_path: Path) -> None:
    assert read_remembered(tmp_path) == Remembered()
    known = Remembered().after((ONE, TWO), ["nvidia"], 0.0).after((ONE,), ["nvidia"], 1.0)
    (tmp_path / FILE).write_text(json.dumps(as_kept(known)))
    assert read_remembered(tmp_path, 2.0) == known
    assert read_remembered(tmp_path, KEPT_S + 2).gone == ()
    # As releases wrote it that did not know of this.
    (tmp_path / FILE).write_text('{"vendors": ["nvidia"], "gpus": []}')
    assert read_remembered(tmp_path) == Remembered(("nvidia",))
    for torn in ("{torn", "[]", '{"gpus": [{"uuid": 3}]}', '{"gpus": [], "gone": [{}]}'):
        (tmp_path / FILE).write_text(torn)
        with pytest.raises(CannotRead, match=FILE):
            read_remembered(tmp_path)


class Answering:
    """A detector whose tool lists these cards; None: it fails."""

    vendor, evidence, loss_detection = "nvidia", "fixture", "full"

    def __init__(self, *gpus: Gpu) -> None:
        self.gpus: Optional[list[Gpu]] = list(gpus)

    def detect(self) -> Detection:
        found = bool(self.gpus)
        return Detection(found, found, "asked")

    def collect(self, known: list[Gpu]) -> Cards:
        if self.gpus is None:
            raise CollectorError("the tool has failed")
        return Cards(self.gpus, source="smi")

    def close(self) -> None: ...


def inventory(detector: Answering, state: Optional[Path], known: Optional[Remembered] = None) -> Inventory:
    made = Inventory([detector], ToolRunner(), node_id="n", state_dir=state, remembered=known)
    made.round(all_vendors=known is not None)
    return made


def test_the_agent_knows_over_a_restart_what_is_gone(tmp_path: Path) -> None:
    detector = Answering(ONE, TWO)
    inventory(detector, tmp_path)
    detector.gpus = [ONE]
    for _ in range(2):
        assert [one.gpu.uuid for one in inventory(detector, tmp_path).remembered().gone] == ["GPU-two"]
    assert [one.gpu.uuid for one in read_remembered(tmp_path).gone] == ["GPU-two"]
    detector.gpus = None
    assert [one.gpu.uuid for one in inventory(detector, tmp_path).remembered().gone] == ["GPU-two"]


@pytest.mark.parametrize("gpus", [None, []])
def test_where_cards_were_known_a_silent_tool_makes_none_healthy_or_virtual(gpus: Optional[list[Gpu]]) -> None:
    detector = Answering()
    detector.gpus = gpus
    seen = inventory(detector, None, Remembered(("nvidia",), (ONE,)))
    report = report_of(seen.snapshot(), seen.remembered().gone)
    assert [(card["uuid"], card["health"]["ok"]) for card in report["gpus"]] == [("GPU-one", None)]
    assert report["source"] == "unavailable" and report["error"]
    assert any("no accelerator that answers" in one for one in report["cannot"])


def test_a_card_that_is_gone_is_told() -> None:
    seen = inventory(Answering(ONE), None, Remembered(("nvidia",), (ONE, TWO)))
    (told,) = report_of(seen.snapshot(), seen.remembered().gone)["gpu_collect_failures"]
    assert told["uuid"] == "GPU-two" and "missing since" in told["reason"]
