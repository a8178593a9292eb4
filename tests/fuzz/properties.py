"""All that must hold for a parser and a text."""

from __future__ import annotations

from tests.fuzz import parsers, sources, truth


def wrong(tool: str, text: str, arguments: list[str]) -> list[str]:
    """Each untruth in words. A parser that raises, raises."""
    told = parsers.told(tool, arguments, text)
    return truth.untrue(tool, told, text) + sources.lies(
        lambda changed: parsers.told(tool, arguments, changed), told, text, arguments
    )
