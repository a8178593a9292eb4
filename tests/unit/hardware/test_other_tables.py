"""Tools of Cambricon, Moore Threads and Biren: invented texts in their forms, and what befalls texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.agent.hardware.cards import cards_of
from runtime.agent.hardware.parsers import brsmi, cnmon, mthreads_gmi
from runtime.agent.hardware.reading import BAD, Parser

CORPUS = Path(__file__).resolve().parents[2] / "fuzz" / "corpus"
TABLES: tuple[tuple[str, Parser, str], ...] = (
    ("cnmon", cnmon.parse, "table_two_cards"),
    ("mthreads-gmi", mthreads_gmi.parse, "table_busy"),
    ("brsmi", brsmi.parse, "table_two_cards"),
)


def text(tool: str, name: str) -> str:
    return (CORPUS / tool / f"{name}.txt").read_text("utf-8")


@pytest.mark.parametrize(
    ("tool", "parse", "name", "cards", "process"),
    [
        (
            *TABLES[0],
            [(3, "MLU370-S4", 20111, 20638, 71, 58, 61), (12, "MLU370-S4", 0, 20638, None, None, None)],
            48213,
        ),
        (
            *TABLES[1],
            [(0, "MTT S3000", 9210, 32768, 37, 61, None), (4, "MTT S3000", None, None, None, None, None)],
            90211,
        ),
        (
            *TABLES[2],
            [(0, "Biren166M", 60111, 65520, 93, 55, 212), (5, "Biren166M", None, None, None, None, None)],
            77120,
        ),
    ],
)
def test_what_cannot_be_read_is_unknown(
    tool: str, parse: Parser, name: str, cards: list[tuple[object, ...]], process: int
) -> None:
    reading = parse([], text(tool, name))
    assert [
        (c.index, c.name, c.memory_used_mib, c.memory_total_mib, c.utilization_pct, c.temperature_c, c.power_w)
        for c in reading.cards
    ] == cards
    assert reading.devices == 2 and reading.errors == []
    assert [entry["pid"] for entry in reading.processes or []] == [process]
    assert all(card.failure is None and card.health is None for card in reading.cards)


@pytest.mark.parametrize(("tool", "parse", "name"), TABLES)
def test_a_process_holds_the_card_that_it_names(tool: str, parse: Parser, name: str) -> None:
    """Its card was told under another name than the one by which holders are looked for: nobody held anything."""
    reading = parse([], text(tool, name))
    (process,) = reading.processes or []
    cards = cards_of(reading, [], vendor="some", source=tool)
    (holder,) = cards.holders or []
    assert (holder.uuid, holder.pid, holder.memory_mib) == (cards.gpus[0].uuid, process["pid"], process["memory_mib"])


@pytest.mark.parametrize(("tool", "parse", "name"), TABLES)
def test_other_line_ends_and_a_second_answer_change_nothing(tool: str, parse: Parser, name: str) -> None:
    plain = text(tool, name)
    reading = parse([], plain)
    assert parse([], plain.replace("\n", "\r\n")) == reading
    assert parse([], plain + plain) == reading
    assert parse([], "a log line before it\n\n" + plain) == reading


@pytest.mark.parametrize(("tool", "parse", "name"), TABLES)
def test_a_text_that_was_cut_off_never_has_more(tool: str, parse: Parser, name: str) -> None:
    plain = text(tool, name)
    whole = parse([], plain)
    known = {card.index: card for card in whole.cards}
    for end in range(0, len(plain), 7):
        for card in parse([], plain[:end]).cards:
            assert card.index in known
            assert card.memory_total_mib in (None, known[card.index].memory_total_mib)


@pytest.mark.parametrize(("tool", "parse", "name"), TABLES)
def test_words_of_somebody_else_are_no_cards(tool: str, parse: Parser, name: str) -> None:
    for words in ("", "\n", "Segmentation fault", "| 0 | x | y |", "0 1 2 3"):
        reading = parse([], words)
        assert reading.cards == [] and reading.devices is None
    (error,) = parse([], f"bash: {tool}: command not found").errors
    assert error.kind == "tool_missing"


def test_a_health_that_is_not_good_condemns_its_card() -> None:
    (card,) = cnmon.parse(["info"], text("cnmon", "info_sick")).cards
    assert (card.health, card.health_raw, card.failure) == (BAD, "In Problem", "health In Problem")
    assert (card.bus_id, card.temperature_c, card.power_limit_w) == ("0000:A1:00.0", 47, 75)


def test_no_card_is_not_the_same_as_no_answer() -> None:
    none = mthreads_gmi.parse([], text("mthreads-gmi", "none"))
    assert (none.devices, [error.kind for error in none.errors]) == (0, ["no_devices"])
    failed = mthreads_gmi.parse([], "failed to initialize mtml\n")
    assert (failed.devices, [error.kind for error in failed.errors]) == (None, ["not_initialized"])
