"""``nvidia-smi --query-gpu=... --format=csv`` and ``--query-compute-apps``: columns by their header or, with
``noheader``, by the fields that were asked for. Rows are samples in time (``-l``): the last one of a card counts."""

from __future__ import annotations

import re
from typing import Any, Optional

from runtime.agent.hardware.parsers.nvidia_smi import verdicts
from runtime.agent.hardware.parsers.tables import amount_mib
from runtime.agent.hardware.reading import CardReading, Complaint, Reading
from runtime.agent.hardware.values import number, whole, word

_QUERIES = re.compile(r"--query-(?:gpu|compute-apps|accounted-apps)(?:=(?P<fields>.*))?")
_FIELD = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*", re.IGNORECASE)
_UNIT = re.compile(r"\s*\[[^\[\]]*\]$")
_ALIASES = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id", "gpu_serial": "serial"}
_KNOWN = {
    *("index", "uuid", "name", "pci.bus_id", "serial", "timestamp", "driver_version", "count", "pid", "pstate"),
    *("memory.total", "memory.used", "memory.free", "utilization.gpu", "temperature.gpu", "power.draw", "power.limit"),
    *("mig.mode.current", "mig.mode.pending", "compute_cap", "compute_mode", "fan.speed"),
}
_WITHOUT_COMMA = {"index", "uuid", "pci.bus_id", "serial", "pid"}
"""Columns whose values never hold one, whatever decimals look like."""

_REMAPPED = {
    "correctable": "remapped_rows.correctable",
    "uncorrectable": "remapped_rows.uncorrectable",
    "pending": "remapped_rows.pending",
    "failure": "remapped_rows.failure",
}


def read(arguments: list[str], lines: list[str]) -> Optional[Reading]:
    """The cards or processes of a CSV; None when the text is none, or nothing says what its columns are."""
    header: Optional[list[str]] = asked_fields(arguments) if "noheader" in _formats(arguments) else None
    cards: dict[Any, CardReading] = {}
    complaints: dict[Any, list[Complaint]] = {}
    processes: dict[Any, dict[str, Any]] = {}
    driver: Optional[str] = None
    pending: dict[Any, bool] = {}
    seen = False
    known = asked_fields(arguments) is not None
    for line in lines:
        names = _header(line, known)
        if names is not None:
            header, seen = names, True
            continue
        cells = None if header is None else _cells(header, line)
        if cells is None:
            continue
        seen = True
        if "pid" in cells:
            process = _process(cells)
            if process is not None:
                processes[(process.get("uuid"), process.get("bus_id"), process["pid"])] = process
            continue
        card, verdict = _card(cells)
        if card is None:
            continue
        named: list[Any] = [key for key in (card.index, card.uuid, card.bus_id) if key is not None]
        key = named[0] if named else ("row", len(cards))
        cards[key] = card
        complaints[key] = verdict.complaints(card)
        current, wanted = word(cells.get("mig.mode.current")), word(cells.get("mig.mode.pending"))
        pending[key] = current is not None and wanted is not None and current.lower() != wanted.lower()
        driver = word(cells.get("driver_version")) or driver
    if not seen:
        return None
    more: dict[str, Any] = {} if header is None else {"columns": len(header)}
    waiting = [card.index for key, card in cards.items() if pending[key] and card.index is not None]
    if waiting:
        more["mig_pending"] = waiting
    return Reading(
        cards=list(cards.values()),
        devices=len(cards) or None,
        errors=[complaint for each in complaints.values() for complaint in each],
        driver_version=driver,
        processes=list(processes.values()) if header is not None and "pid" in header else None,
        more=more,
    )


def asked_fields(arguments: list[str]) -> Optional[list[str]]:
    """The columns that ``--query-gpu=a,b`` (or ``--query-gpu a,b``) asks for."""
    for at, argument in enumerate(arguments):
        match = _QUERIES.fullmatch(argument)
        if match is not None:
            fields = match["fields"] if match["fields"] is not None else "".join(arguments[at + 1 : at + 2])
            return [_name(field) for field in fields.split(",") if field.strip()] or None
    return None


def _formats(arguments: list[str]) -> list[str]:
    return [word for argument in arguments if "csv" in argument for word in re.split(r"[=,\s]+", argument)]


def _name(cell: str) -> str:
    name = _UNIT.sub("", cell.strip()).lower()
    return _ALIASES.get(name, name)


def _header(line: str, known: bool) -> Optional[list[str]]:
    """``known``: that it was asked for columns. One title alone may be any word of any other text."""
    names = [_name(cell) for cell in line.split(",")]
    if not known and len(names) < 2:
        return None
    if not all(_FIELD.fullmatch(name) for name in names) or not _KNOWN.intersection(names):
        return None
    return names


def _cells(header: list[str], line: str) -> Optional[dict[str, str]]:
    """Cells by column. The separator is comma and blank, so a decimal comma is none. More cells than columns: the name
    of the card or process holds commas, the only value that may; fewer: not a row of this table.

    Where the separator is a bare comma, a surplus may come of the name as well as of a decimal comma: what stands
    before the first of them is certain, and nothing is said of the rest.
    """
    if not line.strip():
        return None
    bare = re.match(r"[^,]*,\S", line) is not None  # a row that was cut has fewer cells, and is none of these
    cells = [cell.strip() for cell in (line.split(",") if bare else re.split(r", |,$", line))]
    surplus = len(cells) - len(header)
    named = next((name for name in ("name", "process_name") if name in header), None)
    if surplus > 0 and bare:
        at = next((at for at, name in enumerate(header) if name not in _WITHOUT_COMMA), len(header))
        cells = [*cells[:at], *[""] * (len(header) - at)]
    elif surplus > 0 and named is not None:
        at = header.index(named)
        cells[at : at + surplus + 1] = [", ".join(cells[at : at + surplus + 1])]
    if len(cells) != len(header):
        return None
    row = dict(zip(header, cells))
    for key, form in (
        ("index", r"\d{1,9}"),
        ("pid", r"\d{1,9}"),
        ("pci.bus_id", r"[0-9a-fA-F:.]+"),
        ("uuid", r"(GPU|MIG)-.+"),
    ):
        if key in row and word(row[key]) is not None and not re.fullmatch(form, row[key].strip()):
            return None
    return row


def _card(cells: dict[str, str]) -> tuple[Optional[CardReading], verdicts.Verdict]:
    verdict = verdicts.verdict(cells.get("name"), cells.get("uuid"), cells.values())
    bus = cells.get("pci.bus_id")
    name = word(cells.get("name"))
    more: dict[str, Any] = {}
    for key, value in (
        ("compute_capability", word(cells.get("compute_cap"))),
        ("ecc_uncorrectable", whole(cells.get("ecc.errors.uncorrected.volatile.total"))),
        ("fan_pct", number(cells.get("fan.speed"))),
        ("compute_mode", word(cells.get("compute_mode"))),
    ):
        if value is not None:
            more[key] = value
    if "mig.mode.current" in cells:
        more["mig_mode"] = verdicts.mig_mode(cells["mig.mode.current"])
    rows: dict[str, Any] = {key: whole(cells.get(column)) for key, column in _REMAPPED.items()}
    if any(value is not None for value in rows.values()):
        rows.update({key: verdicts.yes(cells.get(_REMAPPED[key])) for key in ("pending", "failure")})
        more["remapped_rows"] = rows
        verdict = verdict if verdict.health is not None else verdicts.remap_verdict(rows)
    card = CardReading(
        index=whole(cells.get("index")),
        name=name,
        uuid=verdicts.uuid_of(cells.get("uuid")),
        serial=word(cells.get("serial")),
        bus_id=bus if verdicts.is_bus_id(bus) else None,
        memory_total_mib=amount_mib(cells.get("memory.total")),
        memory_used_mib=amount_mib(cells.get("memory.used")),
        utilization_pct=number(cells.get("utilization.gpu")),
        temperature_c=number(cells.get("temperature.gpu")),
        power_w=_first(cells, "power.draw", "power.draw.average"),
        power_limit_w=_first(cells, "power.limit", "enforced.power.limit"),
        health=verdict.health,
        health_raw=verdict.raw,
        failure=verdict.failure,
        name_cut=name is not None and name.endswith("..."),
        more=more,
    )
    blank = CardReading(more={"mig_mode": None} if "mig_mode" in more else {})
    return (None if card == blank else card), verdict


def _first(cells: dict[str, str], *columns: str) -> Optional[float]:
    return next((value for value in (number(cells.get(column)) for column in columns) if value is not None), None)


def _process(cells: dict[str, str]) -> Optional[dict[str, Any]]:
    pid = whole(cells["pid"])
    if pid is None:
        return None
    memory = next((cells[name] for name in ("used_gpu_memory", "used_memory") if name in cells), None)
    found = {"uuid": verdicts.uuid_of(cells.get("uuid")), "bus_id": word(cells.get("pci.bus_id")), "pid": pid}
    name = word(cells.get("process_name", cells.get("name")))
    return {**{k: v for k, v in found.items() if v is not None}, "name": name, "memory_mib": amount_mib(memory)}
