"""Parsers with a fault planted in each, which the properties must see; and what they must not take for one."""

from __future__ import annotations

from typing import Any, Callable

import pytest

from tests.fuzz import parsers
from tests.fuzz.properties import wrong

TABLE = """\
Sat Jul 19 23:58:51 2031
| 0  Parrot  | 00000000:3B:00.0 |
|  40C  7W   |  512MiB / 2048MiB |
| 2  Parrot  | 00000000:AF:00.0 |
|  41C  N/A  |  0MiB / 2048MiB |
"""
HEALTH = {"ok": None, "verdict": None, "raw": None, "problems": []}

Planted = Callable[[list[dict[str, Any]], str], None]


def honest(text: str) -> list[dict[str, Any]]:
    """A reader of TABLE by its words, for faults to be planted in."""
    cards: list[dict[str, Any]] = []
    for line in text.splitlines():
        words = line.replace("|", " ").replace("/", " ").split()
        if len(words) == 3 and words[0].isdigit():
            card = {"index": int(words[0]), "model": words[1], "bus_id": words[2], "uuid": None, "health": HEALTH}
            cards.append({**card, "memory_used_mib": None, "temperature_c": None, "power_w": None})
        elif len(words) == 4 and cards:
            heat, watts, used, _ = words
            for key, word, unit in (
                ("temperature_c", heat, "C"),
                ("power_w", watts, "W"),
                ("memory_used_mib", used, "MiB"),
            ):
                if word.endswith(unit) and word.removesuffix(unit).isdigit():
                    cards[-1][key] = int(word.removesuffix(unit))
    return cards


def _row_for_an_index(cards: list[dict[str, Any]], text: str) -> None:
    for row, card in enumerate(cards):
        card["index"] = row


def _third_card(cards: list[dict[str, Any]], text: str) -> None:
    cards.append({**cards[0], "index": 7, "bus_id": None})


def _same_card_again(cards: list[dict[str, Any]], text: str) -> None:
    cards.append(dict(cards[0]))


def _other_place(cards: list[dict[str, Any]], text: str) -> None:
    cards[0]["bus_id"] = "00000000:3B:AF.0"


def _nothing_but_a_card(cards: list[dict[str, Any]], text: str) -> None:
    cards.append({"index": None, "model": None, "bus_id": None, "uuid": None, "health": HEALTH})


def _other_name(cards: list[dict[str, Any]], text: str) -> None:
    cards[0]["model"] = "Macaw"


def _zero_by_default(cards: list[dict[str, Any]], text: str) -> None:
    for card in cards:
        card["power_w"] = card["power_w"] or 0


def _seconds_of_the_clock(cards: list[dict[str, Any]], text: str) -> None:
    cards[0]["temperature_c"] = 51


def _of_the_address(cards: list[dict[str, Any]], text: str) -> None:
    cards[0]["power_w"] = 3


def _not_a_number(cards: list[dict[str, Any]], text: str) -> None:
    cards[0]["power_w"] = float("nan")


def _crash(cards: list[dict[str, Any]], text: str) -> None:
    cards[9]["power_w"] = None


FAULTS: list[tuple[Planted, str]] = [
    (_row_for_an_index, "gpus.index"),
    (_third_card, "gpus.index"),
    (_same_card_again, "twice"),
    (_other_place, "bus"),
    (_nothing_but_a_card, "a card of nothing"),
    (_other_name, "gpus.model"),
    (_zero_by_default, "gpus.power_w"),
    (_seconds_of_the_clock, "gpus.temperature_c"),
    (_of_the_address, "gpus.power_w"),
]


def found(monkeypatch: pytest.MonkeyPatch, plant: Planted) -> list[str]:
    """What is said of 40 texts that differ in a remark alone, by which the number to look at is chosen."""

    def told(tool: str, arguments: list[str], text: str) -> dict[str, Any]:
        cards = honest(text)
        if cards:
            plant(cards, text)
        return {"devices": len(cards) or None, "gpus": cards}

    monkeypatch.setattr(parsers, "told", told)
    return [each for at in range(40) for each in wrong("mx-smi", TABLE + "# " + "x" * at, [])]


@pytest.mark.parametrize(("plant", "words"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_fault_is_seen(monkeypatch: pytest.MonkeyPatch, plant: Planted, words: str) -> None:
    assert [each for each in found(monkeypatch, plant) if words in each]


@pytest.mark.parametrize(("plant", "error"), [(_not_a_number, ValueError), (_crash, IndexError)])
def test_a_crash_is_one(monkeypatch: pytest.MonkeyPatch, plant: Planted, error: type[Exception]) -> None:
    with pytest.raises(error):
        found(monkeypatch, plant)


def test_an_honest_parser_has_nothing_to_hide(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, lambda cards, text: None) == []
