"""``cnmon info``: blocks of indented ``key : value`` lines below ``Card N``."""

from __future__ import annotations

import re
from typing import Any, Optional

from runtime.agent.hardware.parsers import tables
from runtime.agent.hardware.pci import printed_bus_id
from runtime.agent.hardware.reading import BAD, OK, CardReading, Reading
from runtime.agent.hardware.values import number, whole, word

_CARD = re.compile(r"Card (\d{1,9})\s*")
_LINE = re.compile(r"(\s+)([^:]+?)\s*:\s*(.*)")
_VERSION = re.compile(r"CNMON\s+([^\s=]+)")

Keys = dict[tuple[str, ...], str]
_BUS = ("Domain ID", "Bus num", "Device", "Function")


def is_info(lines: list[str]) -> bool:
    return any(_CARD.fullmatch(line) for line in lines)


def parse_info(lines: list[str]) -> Reading:
    cards: dict[int, Keys] = {}
    processes: list[dict[str, Any]] = []
    version, listed = None, False
    keys: Optional[Keys] = None
    index = -1
    path: list[tuple[int, str]] = []
    for line in lines:
        named, begins, found = _VERSION.search(line), _CARD.fullmatch(line), _LINE.fullmatch(line)
        if begins is not None:
            index, path = int(begins[1]), []
            keys = cards[index] = {}
        elif named is not None:
            version = named[1]
        elif found is not None and keys is not None:
            depth = len(found[1].expandtabs())
            path = [step for step in path if step[0] < depth] + [(depth, found[2])]
            at = tuple(step[1] for step in path)
            keys[at] = found[3].strip()
            listed = listed or at[0].startswith("Process")
            if at[0] == "Processes":
                _take_process(processes, index, at, found[3].strip())
    read = [_card(number_, said) for number_, said in cards.items()]
    driver = next((word(said.get(("Driver",))) for said in cards.values() if ("Driver",) in said), None)
    more = {"cnmon_version": version}
    return Reading(read, len(read), driver_version=driver, processes=processes if listed else None, more=more)


def _take_process(processes: list[dict[str, Any]], index: int, at: tuple[str, ...], value: str) -> None:
    if at[-1] == "PID" and whole(value) is not None:
        processes.append({"index": index, "pid": whole(value), "name": None, "memory_mib": None})
    elif processes and at[-1] == "cmdline":
        processes[-1]["name"] = word(value)
    elif processes and at[-1] == "MLU Memory Usage":
        processes[-1]["memory_mib"] = tables.amount_mib(value)


def _card(index: int, said: Keys) -> CardReading:
    raw = word(said.get(("Health State", "Device")))
    health = None if raw is None else OK if raw.lower() == "good" else BAD
    parts = [said.get(("PCI", part)) for part in _BUS]
    more = {
        "temperature_board_c": number(said.get(("Temperature", "Board"))),
        "temperature_memory_c": number(said.get(("Temperature", "Memory"))),
    }
    return CardReading(
        index=index,
        name=word(said.get(("Product Name",))),
        uuid=word(said.get(("UUID",))),
        serial=word(said.get(("Serial Number",), said.get(("SN",)))),
        bus_id=printed_bus_id("{}:{}:{}.{}".format(*parts)) if all(parts) else None,
        memory_total_mib=tables.amount_mib(said.get(("Physical Memory Usage", "Total"))),
        memory_used_mib=tables.amount_mib(said.get(("Physical Memory Usage", "Used"))),
        utilization_pct=number(said.get(("Utilization", "MLU Average"))),
        temperature_c=number(said.get(("Temperature", "Chip"))),
        power_w=number(said.get(("Power", "Usage"))),
        power_limit_w=number(said.get(("Power", "Cap"))),
        health=health,
        health_raw=raw,
        failure=f"health {raw}" if health == BAD else None,
        more=more,
    )
