"""nvidia-smi in all its forms. Which one a text is, is seen in the text; the arguments only help where it does not
say (a CSV without header, a MIG command that printed an error)."""

from __future__ import annotations

import dataclasses
from typing import Optional

from runtime.agent.hardware.parsers import tables
from runtime.agent.hardware.parsers.nvidia_smi import details, listing, mig, plain, query
from runtime.agent.hardware.parsers.nvidia_smi.complaints import NO_DEVICES, complaints
from runtime.agent.hardware.reading import Complaint, Reading


def parse(arguments: list[str], text: str) -> Reading:
    """As :data:`reading.Parser`. ``topo -m`` is for the reader of topologies."""
    lines = tables.lines(text)
    reading = _cards(arguments, text, lines) or Reading()
    more = {**reading.more, **mig.read(arguments, lines)}
    version = listing.nvml_version(lines)
    if version is not None:
        more["nvml_version"] = version
    errors = _merged(complaints(arguments, lines), reading.errors)
    empty = not reading.cards and any(error.text == NO_DEVICES for error in errors)
    return dataclasses.replace(reading, errors=errors, more=more, devices=0 if empty else reading.devices)


def _cards(arguments: list[str], text: str, lines: list[str]) -> Optional[Reading]:
    if "<nvidia_smi_log" in text:
        return details.read_xml("\n".join(lines))
    asked = query.asked_fields(arguments) is not None
    return (
        (query.read(arguments, lines) if asked else None)
        or details.read_keys(lines)
        or plain.read(lines)
        or listing.read(lines)
        or listing.versions(lines)
        or (None if asked else query.read(arguments, lines))
    )


def _merged(said: list[Complaint], seen: list[Complaint]) -> list[Complaint]:
    """The tool's sentences, then what stands in the cards' rows; a card once for each kind."""
    told = {(blame.index, error.kind) for error in said for blame in error.blamed}
    return said + [error for error in seen if not any((blame.index, error.kind) in told for blame in error.blamed)]
