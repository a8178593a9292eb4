"""How many hosts each wave has, as Ansible counts them, and the words that say it on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

_DEFAULT = re.compile(r"fleet_wave\s*\|\s*default\(([^()]*)\)")
_WORD = re.compile(r"[1-9][0-9]*|([1-9][0-9]?|100)%")


def parse(text: str) -> list[int | str]:
    """``1,10%,100%`` as Ansible takes it. Raises ValueError."""
    words = [word.strip() for word in text.split(",")]
    if not all(_WORD.fullmatch(word) for word in words):
        raise ValueError(f"found {text!r}, wanted numbers of hosts or shares of them such as 1,10%,100%")
    return [word if word.endswith("%") else int(word) for word in words]


def sizes(said: Any, hosts: int) -> list[int] | None:
    """The size of each wave of ``hosts``; None where what was said is not understood (a template)."""
    words = said if isinstance(said, Sequence) and not isinstance(said, str) else [said]
    found: list[int] = []
    for word in words:
        text = str(word).strip()
        if not _WORD.fullmatch(text):
            return None
        found.append(max(1, int(int(text[:-1]) / 100.0 * hosts)) if text.endswith("%") else int(text))
    waves: list[int] = []
    while sum(waves) < hosts and found:
        # The last size goes on until nobody is left.
        size = found[min(len(waves), len(found) - 1)]
        waves.append(min(size, hosts - sum(waves)))
    return waves


def planned(serial: Any, hosts: int, fleet_wave: Any) -> list[int] | None:
    """Of a play's ``serial`` as written: a template of ``fleet_wave`` stands for that variable's value, else for the
    default that it names."""
    if isinstance(serial, str) and "fleet_wave" in serial:
        default = _DEFAULT.search(serial)
        serial = fleet_wave if fleet_wave is not None else yaml.safe_load(default[1]) if default else None
    return sizes(serial, hosts)
