"""Tools of Kunlunxin, Iluvatar, MetaX and Enflame: invented texts in their forms, and what befalls texts."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from runtime.agent.hardware.parsers import efsmi, ixsmi, mx_smi, xpu_smi
from runtime.agent.hardware.reading import BAD, OK, CardReading, Reading
from tests.fuzz import parsers
from tests.fuzz.texts import own

TOOLS = ("xpu-smi", "xpu_smi", "ixsmi", "mx-smi", "efsmi")
TABLES = (
    ("xpu-smi", "table_gap"),
    ("xpu_smi", "two_on_a_card"),
    ("ixsmi", "table_sick"),
    ("mx-smi", "table_state"),
    ("efsmi", "table_mixed"),
)


def text_of(tool: str, name: str) -> str:
    return next(text.text for text in own(tool) if text.name == name)


def read(tool: str, name: str) -> Reading:
    return parsers.parser(tool)([], text_of(tool, name))


def facts(card: CardReading) -> tuple[Any, ...]:
    return (
        card.index,
        card.name,
        card.bus_id,
        (card.memory_used_mib, card.memory_total_mib),
        card.utilization_pct,
        card.temperature_c,
        (card.power_w, card.power_limit_w),
    )


Row = tuple[
    int,
    Optional[str],
    Optional[str],
    tuple[Optional[int], Optional[int]],
    Optional[float],
    Optional[float],
    tuple[Optional[float], Optional[float]],
]

EXPECTED: list[tuple[str, str, list[Row]]] = [
    (
        "xpu-smi",
        "table_gap",
        [
            (2, "P900 PCIe", "00000000:17:00.0", (40112, 65536), 87, 61, (212, 350)),
            (11, "P900 PCIe", "00000000:E3:00.0", (7, 65536), None, None, (None, 350)),
        ],
    ),
    (
        "xpu-smi",
        "keys_two",
        [
            (2, "P900 PCIe", "00000000:17:00.0", (40112, 65536), 87, 61, (212.5, 350)),
            (11, "P900 PCIe", "00000000:E3:00.0", (None, 65536), None, None, (None, None)),
        ],
    ),
    (
        "xpu_smi",
        "two_on_a_card",
        [
            (4, "K100", "0000:81:00.0", (900, 8064), 35, 58, (61, 75)),
            (5, "K100", "0000:81:00.0", (0, 8064), None, None, (None, None)),
        ],
    ),
    (
        "ixsmi",
        "table_sick",
        [
            (0, "Iluvatar BI-V200S", "00000000:41:00.0", (2064, 49152), 13, 47, (None, None)),
            (3, "Iluvatar BI-V200S", "00000000:44:00.0", (64, 49152), 0, 46, (188, 400)),
            (4, "Iluvatar BI-V200S", "00000000:47:00.0", (64, 49152), None, None, (None, 400)),
        ],
    ),
    ("ixsmi", "xml_one", [(3, "Iluvatar BI-V200S", "00000000:44:00.0", (64, 49152), 21, 46, (188, 400))]),
    (
        "mx-smi",
        "table_state",
        [
            (0, "MetaX C600", "0000:21:00.0", (70001, 81920), 64, 58, (301, None)),
            (1, "MetaX C600", "0000:22:00.0", (None, None), None, None, (None, None)),
            (5, "MetaX C600", "0001:22:00.0", (858, 81920), 0, 31, (55, 500)),
        ],
    ),
    ("mx-smi", "keys", [(5, "MetaX C600", "0001:22:00.0", (858, 81920), 3, 31.25, (55.3, None))]),
    (
        "efsmi",
        "table_mixed",
        [
            (1, "Enflame L400", "00:5a:00.0", (None, 98304), 91.5, 53, (240, 450)),
            (2, "S60", "00:5b:00.0", (None, 49120), None, 44, (101, 300)),
        ],
    ),
    (
        "efsmi",
        "keys_bad",
        [
            (1, "L400", "0000:5a:00.0", (70000, 98304), 91.5, 53, (240, 450)),
            (2, None, None, (None, None), None, None, (None, None)),
        ],
    ),
    (
        "efsmi",
        "list",
        [
            (0, None, "0001:23:00.0", (None, None), None, None, (None, None)),
            (3, None, "0001:24:00.0", (None, None), None, None, (None, None)),
        ],
    ),
]


@pytest.mark.parametrize(("tool", "name", "rows"), EXPECTED, ids=[f"{tool}-{name}" for tool, name, _ in EXPECTED])
def test_what_a_text_says(tool: str, name: str, rows: list[Row]) -> None:
    reading = read(tool, name)
    assert [facts(card) for card in reading.cards] == rows
    assert reading.devices == len(rows)


@pytest.mark.parametrize(
    ("tool", "name", "verdicts"),
    [
        ("xpu_smi", "two_on_a_card", [OK, BAD]),
        ("ixsmi", "table_sick", [None, None, BAD]),
        ("mx-smi", "table_state", [OK, BAD, None]),
        ("mx-smi", "list", [OK, BAD]),
        ("efsmi", "keys_bad", [BAD, None]),
        ("efsmi", "table_mixed", [None, None]),
    ],
)
def test_who_is_sick(tool: str, name: str, verdicts: list[Optional[str]]) -> None:
    cards = read(tool, name).cards
    assert [card.health for card in cards] == verdicts
    assert [card.failure is not None for card in cards] == [verdict == BAD for verdict in verdicts]


def test_a_condemned_card_is_condemned_in_the_tools_words() -> None:
    assert "65535W / 400" in (read("ixsmi", "table_sick").cards[2].failure or "")
    assert read("mx-smi", "list").cards[1].failure == "Not Available(MetaX Sysfs File Unaccessible)"
    assert read("efsmi", "keys_bad").cards[0].failure == "Health : False"


@pytest.mark.parametrize(
    ("tool", "name", "processes"),
    [
        ("xpu-smi", "table_gap", [{"index": 2, "pid": 4021, "name": "python3 serve.py", "memory_mib": 40100}]),
        ("xpu-smi", "keys_two", []),
        ("xpu_smi", "two_on_a_card", [{"index": 4, "pid": 771, "name": "python3", "memory_mib": 880}]),
        ("ixsmi", "table_sick", [{"index": 0, "pid": 1307, "name": "python3", "memory_mib": 2000}]),
        ("ixsmi", "xml_one", []),
        ("mx-smi", "table_state", [{"index": 0, "pid": 5150, "name": "python3.11", "memory_mib": 69000}]),
        ("mx-smi", "list", None),
        ("efsmi", "table_mixed", None),
    ],
)
def test_processes_are_none_where_nothing_is_said_of_them(tool: str, name: str, processes: Any) -> None:
    assert read(tool, name).processes == processes


def test_names_that_a_card_has_for_good() -> None:
    assert [card.uuid for card in read("xpu-smi", "keys_two").cards] == [
        "GPU-0a0b0c0d-1111-2222-3333-444455556666",
        None,
    ]
    assert [card.uuid for card in read("xpu-smi", "list").cards][1] is None
    assert [card.uuid for card in read("efsmi", "list").cards] == ["TQZZ00000009", None]
    assert [card.more["device_node"] for card in read("xpu_smi", "two_on_a_card").cards] == ["/dev/xpu4", "/dev/xpu5"]
    assert [card.more["virt"] for card in read("efsmi", "table_mixed").cards] == ["Disable", "SRIOV"]


def test_a_tool_without_its_libraries_says_nothing_of_cards() -> None:
    reading = read("ixsmi", "no_libraries")
    assert reading.devices is None and reading.cards == []
    assert [error.text for error in reading.errors] == [
        "error while loading shared libraries: libixml.so: cannot open shared object file: No such file or directory"
    ]


# What befalls a text


@pytest.mark.parametrize(("tool", "name"), TABLES)
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: f"starting up\n{text}\ndone\n",
        lambda text: "\x1b[1m" + text.replace("|", "\x1b[0m|"),
        lambda text: "".join(line * 2 for line in text.splitlines(True)),
        lambda text: text + text,
        lambda text: text.replace(" | ", "    |    "),
    ],
    ids=["crlf", "text around it", "colours", "lines doubled", "two samples", "wider"],
)
def test_it_is_still_the_same(tool: str, name: str, change: Any) -> None:
    text = text_of(tool, name)
    assert parsers.parser(tool)([], change(text)).cards == parsers.parser(tool)([], text).cards


@pytest.mark.parametrize(("tool", "name"), TABLES)
def test_the_last_of_two_samples_counts(tool: str, name: str) -> None:
    text = text_of(tool, name)
    first = parsers.parser(tool)([], text).cards[0]
    later = text.replace(first.bus_id or "", "0000:99:00.0")
    cards = parsers.parser(tool)([], text + later).cards
    assert "0000:99:00.0" in [card.bus_id for card in cards] and first.bus_id not in [card.bus_id for card in cards]


@pytest.mark.parametrize(("tool", "name"), TABLES)
def test_a_text_cut_off_anywhere_says_no_more_than_the_whole(tool: str, name: str) -> None:
    text, parse = text_of(tool, name), parsers.parser(tool)
    whole = {facts(card)[0]: facts(card) for card in parse([], text).cards}
    for end in range(0, len(text), 7):
        for card in parse([], text[:end]).cards:
            said = facts(card)
            for part, value in zip(said, whole[said[0]]):
                assert part in (value, None, (None, None)), text[:end][-200:]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("text", ["", "\n", "|", "||\n||", "bash: no such tool\n", "+---+\n| 0 |\n+---+\n"])
def test_what_is_no_output_of_the_tool_is_no_card_and_no_count(tool: str, text: str) -> None:
    reading = parsers.parser(tool)([], text)
    assert (reading.cards, reading.devices, reading.processes) == ([], None, None)


def test_a_column_more_in_front_and_one_renamed() -> None:
    text = (
        "+----+\n| Row | GPU  NAME  | Bus-id       | GPU-Util |\n|     | Temp  Power | Memory-Usage |         |\n"
        "|====+====|\n| a   | 3    MetaX X  | 0000:0a:00.0 | 5%       |\n"
        "|     | 40C   60W      | 1/1024 MiB   |          |\n+----+\n"
    )
    (card,) = mx_smi.parse([], text).cards
    assert facts(card) == (3, "MetaX X", "0000:0a:00.0", (1, 1024), 5, 40, (60, None))


def test_the_size_of_a_window_is_not_the_memory() -> None:
    text = text_of("efsmi", "keys_bad").replace("    Device Mem Info\n", "    Other Info\n")
    assert efsmi.parse([], text).cards[0].memory_total_mib is None


def test_the_cache_is_not_the_memory() -> None:
    text = text_of("xpu-smi", "table_gap").replace("40112MiB / 65536MiB", "               N/A ")
    assert xpu_smi.parse([], text).cards[0].memory_total_mib is None


def test_far_beyond_its_limit_is_no_power() -> None:
    text = text_of("ixsmi", "table_sick").replace("65535W / 400", "2001W / 400W")
    assert ixsmi.parse([], text).cards[2].health == BAD
    assert ixsmi.parse([], text.replace("2001W", "1999W")).cards[2].health is None
