"""Iluvatar CoreX's ``ixsmi``: the table (a look-alike of nvidia-smi with clocks where that has ECC), ``-q -x`` (XML),
``-L``.

A BI-V150 is two chips, of which only the second reports the board's power: N/A is healthy there. A sick card stays in
the list with values that cannot be: 65535 W at 0 °C and 100 %. Those are no readings, and condemn the card. Without
its own libraries the tool does not start, which says nothing of cards.
"""

from __future__ import annotations

import re
from typing import Any, Optional

from runtime.agent.hardware.parsers import lookalike, tables, tree
from runtime.agent.hardware.reading import BAD, CardReading, Complaint, Reading
from runtime.agent.hardware.values import number, whole, word

_LISTED = re.compile(r"GPU (?P<index>\d{1,9}): (?P<name>.+?) \(UUID: (?P<uuid>[^\s()]+)\)")
_LABELS = {
    "bus": "bus-id",
    "clocks": "clock-sm|clock-mem",
    "sensors": "pwr:|power",
    "memory": "memory-usage",
    "load": "gpu-util",
}
_UNHEADED = {"bus": (0, 1), "clocks": (0, 2), "sensors": (1, 0), "memory": (1, 1), "load": (1, 2)}
_LOADER = re.compile(r"error while loading shared libraries: \S.*")
_CLOCK = re.compile(r"\d+(?:\.\d+)?\s*MHz")

ALL_BITS_W = 65535
"""What a register says that does not answer."""
BEYOND_LIMIT = 5
"""A card that draws more than so many times its limit is not measured any more."""


def parse(arguments: list[str], text: str) -> Reading:
    """Cards of the table, the XML or the list; the text itself tells which it is."""
    if "<ixsmi_log" in text:
        return _xml("\n".join(tables.lines(text)))
    loader = _LOADER.search("\n".join(tables.lines(text)))
    reading = _listing(text) or _table(text)
    if loader is None or reading.cards:
        return reading
    return Reading(errors=[Complaint(loader.group())])


def _table(text: str) -> Reading:
    table = lookalike.read(text, _LABELS, _UNHEADED)
    return table.reading([_judged(card.reading(), _printed(card)) for card in table.cards.values()])


def _printed(card: lookalike.Card) -> dict[str, str]:
    """The cells of a card as they stand there, for whoever wants to know what a sick one said."""
    sensors, load = card.cell("sensors"), card.cell("load").split()
    clocks = _CLOCK.findall(card.cell("clocks"))
    heat = re.search(r"\d+(?:\.\d+)?\s*(?:°?C|℃)", sensors)
    power = re.search(r"(?<!\S)\S+\s*/\s*\S+$", sensors)
    found = {
        "power": power and power.group(),
        "temp": heat and heat.group(),
        "util": load[0] if load else None,
        "clock_sm": clocks[0] if clocks else None,
        "clock_mem": clocks[1] if len(clocks) > 1 else None,
    }
    return {key: value for key, value in found.items() if value}


def _judged(card: CardReading, printed: dict[str, str]) -> CardReading:
    """A sick card without the values that cannot be; memory stays, since the tool has it from before."""
    power = card.power_w
    over = power is not None and card.power_limit_w is not None and power > BEYOND_LIMIT * card.power_limit_w > 0
    if power is None or not (power >= ALL_BITS_W or over):
        return card
    words = ", ".join(printed[key] for key in ("power", "temp", "util") if key in printed)
    return CardReading(
        index=card.index,
        name=card.name,
        uuid=card.uuid,
        serial=card.serial,
        bus_id=card.bus_id,
        memory_total_mib=card.memory_total_mib,
        memory_used_mib=card.memory_used_mib,
        power_limit_w=card.power_limit_w,
        health=BAD,
        health_raw=words,
        failure=f"readings that cannot be: {words}",
        name_cut=card.name_cut,
        more={**card.more, "raw": printed},
    )


def _xml(text: str) -> Reading:
    log = list(tree.from_xml(text).all("ixsmi_log"))[-1:] or [tree.Node("ixsmi_log")]
    cards: dict[Any, CardReading] = {}
    processes: Optional[list[dict[str, Any]]] = None
    for node in log[0].all("gpu"):
        card = _xml_card(node)
        if card.bus_id is None and card.uuid is None:
            continue
        cards[card.bus_id or card.uuid] = card
        section = node.at("processes")
        if section is not None:
            processes = (processes or []) + _processes(card.index, section)
    attached = whole(log[0].text("attached_gpus"))
    version = re.match(r"\d[\w.]*", log[0].text("driver_version") or "")
    return Reading(
        list(cards.values()),
        len(cards) or None,
        driver_version=None if version is None else version.group(),
        processes=processes,
        more={} if attached is None else {"attached_reported": attached},
    )


def _xml_card(node: tree.Node) -> CardReading:
    """The board's power is that of both chips, so it stands in only where the chip has none of its own."""
    power, limit = ("power_readings", "gpu_power_draw|power_draw"), ("power_readings", "current_gpu_power_limit")
    draw, board = node.text(*power), node.text("power_readings", "board_power_draw")
    if word(draw) is None and word(board) is not None:
        draw, limit = board, ("power_readings", "current_board_power_limit")
    counted = {
        "ecc_uncorrectable": whole(node.text("ecc_errors", "double_bit")),
        "memory_util_pct": number(node.text("utilization", "memory_util")),
    }
    place = lookalike.BUS.search(node.value or "") or lookalike.BUS.search(node.text("pci", "pci_bus_id") or "")
    heat, load = node.text("temperature", "gpu_temp"), node.text("utilization", "gpu_util")
    uuid = word(node.text("uuid"))
    card = CardReading(
        index=whole(node.text("minor_number")),
        name=word(node.text("product_name")),
        uuid=None if uuid is None or "?" in uuid else uuid,
        serial=word(node.text("serial")),
        bus_id=None if place is None else place.group(),
        memory_total_mib=tables.amount_mib(node.text("memory_usage", "total")),
        memory_used_mib=tables.amount_mib(node.text("memory_usage", "used")),
        utilization_pct=number(load),
        temperature_c=number(heat),
        power_w=number(draw),
        power_limit_w=number(node.text(*limit)),
        more={key: value for key, value in counted.items() if value is not None},
    )
    printed = {"power": draw, "temp": heat, "util": load}
    return _judged(card, {key: value for key, value in printed.items() if value})


def _processes(index: Optional[int], section: tree.Node) -> list[dict[str, Any]]:
    found = []
    for node in section.all("process_info"):
        pid = whole(node.text("pid"))
        if pid is not None:
            memory = tables.amount_mib(node.text("used_memory"))
            found.append({"index": index, "pid": pid, "name": word(node.text("process_name")), "memory_mib": memory})
    return found


def _listing(text: str) -> Optional[Reading]:
    """``-L``; a uuid of question marks is one that the tool could not read."""
    cards = {}
    for match in filter(None, (_LISTED.fullmatch(line.strip()) for line in tables.lines(text))):
        index, uuid = int(match["index"]), match["uuid"]
        cards[index] = CardReading(index=index, name=match["name"], uuid=None if "?" in uuid else uuid)
    return Reading(list(cards.values()), len(cards)) if cards else None
