"""All findings as one text that a person reads: refusals first, then warnings, equal findings of many hosts once."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from finding import FLEET, Finding

HEADS = ("host", "check", "found", "wanted", "what to do")
WIDTHS = (16, 13, 33, 22, 26)
NAMED = 6
"""So many hosts of one row are named, the others counted."""


def render(findings: Sequence[Finding], hosts: int) -> str:
    """The whole report; ``hosts``: how many were looked at."""
    refused = {one.host for one in findings if one.refuses and one.host != FLEET}
    whole = any(one.refuses and one.host == FLEET for one in findings)
    warnings = sum(1 for one in findings if not one.refuses)
    head = "nothing is done" if whole else f"{len(refused)} of {_count(hosts, 'host')} refused"
    head += f", {_count(warnings, 'warning')}" if warnings else ""
    parts = [f"Preflight: {head}."] if findings else [f"Preflight: {_count(hosts, 'host')}, nothing found."]
    for title, grave in (("REFUSED", True), ("WARNINGS", False)):
        rows = [one for one in findings if one.refuses is grave]
        if rows:
            parts.append("\n".join([title, *_lines(rows)]))
    return "\n\n".join(parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _lines(findings: Iterable[Finding]) -> list[str]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for one in sorted(findings, key=lambda one: one.host):
        groups.setdefault((one.check, one.found, one.wanted, one.do), []).append(one.host)
    rows = [(_names(hosts), *cells) for cells, hosts in groups.items()]
    lines = [line for row in [HEADS, *rows] for line in _row(row)]
    return [line.rstrip() for line in lines]


def _names(hosts: Sequence[str]) -> str:
    if FLEET in hosts:
        return "(all)"
    more = len(hosts) - NAMED
    return ", ".join(hosts[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _row(cells: Sequence[str]) -> list[str]:
    """One row, its cells wrapped to their columns. Paths and addresses are not broken at hyphens."""
    columns = [
        textwrap.wrap(cell, width, break_on_hyphens=False) or [""] for cell, width in zip(cells, WIDTHS, strict=True)
    ]
    height = max(map(len, columns))
    padded = [lines + [""] * (height - len(lines)) for lines in columns]
    return [
        "  " + "  ".join(text.ljust(width) for text, width in zip(texts, WIDTHS, strict=True))
        for texts in zip(*padded, strict=True)
    ]
