"""When vendors are looked for again, and what is said of one that is here and does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

from runtime.agent.hardware.detector import Cards, CollectorError, Detection
from runtime.agent.hardware.inventory import Inventory
from runtime.agent.hardware.looks import LOOK_AGAIN_EVERY, Looks, Stamps, device_stamps
from runtime.agent.hardware.tools import ToolRunner
from runtime.protocol.hardware import Gpu


class Machine:
    """Rounds, and the stamps of its device folders."""

    def __init__(self) -> None:
        self.stamps: Stamps = (1, None)
        self.looks = Looks(lambda: self.stamps)

    def looked_at(self, rounds: int, *, broken: bool) -> list[int]:
        found = []
        for number in range(rounds):
            if self.looks.due():
                found.append(number)
                self.looks.looked(broken=broken)
        return found


@pytest.mark.parametrize(
    ("broken", "rounds"), [(True, [0, 1, 3, 7, 15, 27, 39]), (False, [0, *(LOOK_AGAIN_EVERY * n for n in (1, 2, 3))])]
)
def test_at_least_once_a_minute_and_soon_where_a_vendor_is_here(broken: bool, rounds: list[int]) -> None:
    assert Machine().looked_at(40, broken=broken) == rounds


@pytest.mark.parametrize("broken", [True, False])
def test_new_device_files_are_looked_at_at_once(broken: bool) -> None:
    machine = Machine()
    machine.looked_at(30, broken=broken)
    machine.stamps = (1, 7)
    assert machine.looked_at(4, broken=broken) == ([0, 1, 3] if broken else [0])


def test_this_machine_has_a_stamp_to_go_by() -> None:
    assert device_stamps()[0] is not None


class Vendor:
    """``why`` None: it answers with a card."""

    evidence = loss_detection = "none"

    def __init__(self, vendor: str, why: Optional[str] = None, here: bool = True) -> None:
        self.vendor, self.why, self.here, self.asked = vendor, why, here, 0

    def detect(self) -> Detection:
        self.asked += 1
        return Detection(self.why is None, self.here, self.why or "answers")

    def collect(self, known: list[Gpu]) -> Cards:
        if self.why is not None:
            raise CollectorError(self.why)
        return Cards([Gpu(f"{self.vendor}-0", self.vendor, 0)], source=self.vendor)

    def close(self) -> None:
        pass


def of(*vendors: Vendor, mode: str = "first", state: Optional[Path] = None) -> Inventory:
    looks = Looks(lambda: (1,))
    return Inventory(list(vendors), ToolRunner(), node_id="n", state_dir=state, mode=mode, looks=looks)  # type: ignore[arg-type]


def seen(inventory: Inventory) -> tuple[list[str], Optional[str]]:
    snapshot = inventory.snapshot()
    return [gpu.uuid for gpu in snapshot.gpus or []], snapshot.collector_error


def test_a_tool_that_fails_at_the_first_look_is_asked_again_within_seconds() -> None:
    """What happened: an agent that started before the driver was loaded saw no card for five minutes."""
    vendor = Vendor("ascend", "the driver is not loaded")
    here = of(vendor)
    here.round()
    assert seen(here) == ([], "the driver is not loaded")
    vendor.why = None
    here.round()
    assert seen(here) == (["ascend-0"], None)


def test_of_all_vendors_one_that_fails_at_the_first_look_is_said_and_asked_again() -> None:
    """What happened: its cards were neither there nor missed, and nobody said so."""
    good, bad, away = Vendor("ascend"), Vendor("hygon", "hy-smi has failed"), Vendor("kunlun", "no xpu-smi", here=False)
    here = of(good, bad, away, mode="all")
    here.round()
    assert seen(here) == (["ascend-0"], "hy-smi has failed")
    assert [line.found for line in here.snapshot().detection] == [True, False, False]
    bad.why = None
    here.round()
    assert seen(here) == (["ascend-0", "hygon-0"], None)
    assert good.asked == 1, "whose cards are read anyway is not asked whether it is here"


def test_the_first_vendor_s_cards_are_not_kept_from_work_by_another_that_fails() -> None:
    here = of(Vendor("ascend"), Vendor("hygon", "hy-smi has failed"))
    here.round()
    assert seen(here) == (["ascend-0"], None)


def test_who_takes_the_first_vendor_after_all_takes_one(tmp_path: Path) -> None:
    vendors = (Vendor("ascend"), Vendor("hygon"))
    for mode, cards in (("all", ["ascend-0", "hygon-0"]), ("first", ["ascend-0"]), ("all", ["ascend-0", "hygon-0"])):
        here = of(*vendors, mode=mode, state=tmp_path)
        here.round()
        assert seen(here)[0] == cards
