"""What a reading means for the node: who a card is, which is condemned, and when nothing can be said."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

from runtime.agent.hardware.cards import by_bus_and_chip, by_uuid_or_bus, cards_of
from runtime.agent.hardware.detector import Cards, CollectorError
from runtime.agent.hardware.reading import BAD, OK, WARNING, Blame, CardReading, Complaint, Reading
from runtime.protocol.hardware import Gpu, GpuStats

NO_SYSFS = Path("/nonexistent")


def meant(reading: Reading, known: Optional[list[Gpu]] = None) -> Cards:
    return cards_of(reading, known or [], vendor="acme", source="acme-smi", sysfs=NO_SYSFS)


def card(index: int, **told: object) -> CardReading:
    return CardReading(index, bus_id=f"0000:{index:02x}:00.0", **told)  # type: ignore[arg-type]


def uuid(index: int) -> str:
    return f"00000000:{index:02X}:00.0"


@pytest.mark.parametrize(
    ("cards", "uuids"),
    [
        ([CardReading(0, uuid="U-0", bus_id="0000:00:00.0")], ["U-0"]),
        ([card(0), card(1)], [uuid(0), uuid(1)]),
        (
            [CardReading(0, bus_id="0000:01:00.0"), CardReading(1, bus_id="0000:01:00.0")],
            [f"{uuid(1)}/0", f"{uuid(1)}/1"],
        ),
        ([CardReading(0), CardReading(3)], ["acme-0", "acme-3"]),
        ([], []),
    ],
)
def test_who_a_card_is(cards: list[CardReading], uuids: list[str]) -> None:
    assert [gpu.uuid for gpu in meant(Reading(cards, len(cards))).gpus] == uuids


def test_a_chip_of_a_card_keeps_its_name_when_its_sibling_is_gone() -> None:
    both = [CardReading(at, bus_id="0000:01:00.0", more={"npu_id": 5, "chip_id": at}) for at in (0, 1)]
    names = [by_bus_and_chip(each) for each in both]
    assert names == [f"{uuid(1)}/0", f"{uuid(1)}/1"]
    assert by_bus_and_chip(CardReading(0, more={"chip_id": 0})) is None
    assert by_uuid_or_bus(CardReading(0)) is None


def test_a_numbered_card_is_the_known_one_while_the_numbers_are_the_same() -> None:
    known = [Gpu(uuid(at), "acme", at) for at in (0, 1)]
    assert [gpu.uuid for gpu in meant(Reading([CardReading(0), CardReading(1)], 2), known).gpus] == [uuid(0), uuid(1)]


def test_other_numbers_than_known_say_nothing_of_any_card() -> None:
    known = [Gpu(uuid(at), "acme", at) for at in (0, 1, 2)]
    with pytest.raises(CollectorError, match="does not tell them apart; 3 were known"):
        meant(Reading([CardReading(0), CardReading(1)], 2), known)


@pytest.mark.parametrize(
    "reading",
    [
        Reading(),
        Reading(errors=[Complaint("driver is not there", "driver_not_loaded")]),
        Reading(errors=[Complaint("whatever")], more={"version": "1"}),
    ],
)
def test_a_failed_tool_condemns_no_card(reading: Reading) -> None:
    with pytest.raises(CollectorError, match="acme-smi"):
        meant(reading, [Gpu(uuid(0), "acme", 0)])


def test_no_cards_is_an_answer() -> None:
    assert meant(Reading(devices=0)) == Cards([], source="acme-smi")


def test_a_health_word_condemns_its_card_and_no_sibling() -> None:
    reading = Reading(
        [
            card(0, health=OK, health_raw="OK", temperature_c=40.0),
            card(1, health=BAD, health_raw="Alarm", temperature_c=41.0),
            card(2, health=WARNING, health_raw="Warning"),
        ],
        3,
    )
    cards = meant(reading)
    assert [(failure.uuid, failure.reason) for failure in cards.failures] == [
        (uuid(1), "acme-smi calls its health Alarm")
    ]
    assert [(note.uuid, note.code) for note in cards.notes] == [(uuid(2), "health_warning")]
    assert cards.stats == [GpuStats(uuid(0), 0, 40.0), GpuStats(uuid(1), 1, 41.0)]


def test_an_error_condemns_the_card_it_names_listed_or_known() -> None:
    known = [Gpu(uuid(at), "acme", at, model="Card") for at in (0, 1)]
    lost = Complaint("card 0000:01:00.0 is lost", "gpu_lost", (Blame(bus_id="0000:01:00.0"),))
    for reading in (Reading([card(0), card(1)], 2, [lost]), Reading([card(0)], 1, [lost]), Reading(errors=[lost])):
        known_now = [Gpu(each.uuid, "acme", each.index, "Card", pci_bus_id=each.uuid) for each in known]
        cards = meant(reading, known_now)
        assert [failure.uuid for failure in cards.failures] == [uuid(1)]
        assert uuid(1) in [gpu.uuid for gpu in cards.gpus]


def test_a_card_keeps_what_was_read_of_it_once() -> None:
    known = [Gpu(uuid(0), "acme", 0, "Model X", "acme-model-x-64g", 65536, uuid(0), 1)]
    (gpu,) = meant(Reading([card(0)], 1), known).gpus
    assert (gpu.model, gpu.gpu_class, gpu.memory_total_mib) == ("Model X", "acme-model-x-64g", 65536)


def test_what_is_not_told_is_absent() -> None:
    cards = meant(Reading([card(0)], 1))
    assert cards.stats == [] and cards.holders is None
    (gpu,) = cards.gpus
    assert (gpu.model, gpu.gpu_class, gpu.memory_total_mib, gpu.numa_node) == (None, None, None, None)


def test_processes_are_on_the_card_they_name() -> None:
    chips = [card(4, more={"npu_id": 8, "chip_id": 0}), card(5, more={"npu_id": 8, "chip_id": 1})]
    processes: list[dict[str, Any]] = [
        {"index": None, "npu_id": 8, "chip_id": 1, "pid": 71, "name": "serving", "memory_mib": 900},
        {"npu_id": 9, "chip_id": 0, "pid": 72, "name": "elsewhere", "memory_mib": 1},
        {"pid": 73, "name": "nowhere", "memory_mib": 1},
    ]
    holders = meant(Reading(chips, 2, processes=processes)).holders
    assert holders is not None
    assert [(one.uuid, one.pid, one.name, one.memory_mib, one.ours) for one in holders] == [
        (uuid(5), 71, "serving", 900, False)
    ]
    assert meant(Reading(chips, 2, processes=[])).holders == []
