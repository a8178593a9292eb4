"""The parsers there are behind ``heterofleet-agent parse``, each by one name, and what each makes of a text."""

from __future__ import annotations

from functools import cache
from typing import Any

from runtime.agent.hardware.reading import Parser
from runtime.agent.parse.registry import CARDS, TEXTS, parse_text

TOPO = "topo"
"""Of ``nvidia-smi topo -m``: a parser of its own behind the tool's name."""


def parser(tool: str) -> Parser:
    """The parser of a tool's cards; an error when it has none."""
    return CARDS[tool][1]


@cache
def tools() -> list[str]:
    """Every parser once, by the first command that it reads: ``hy-smi`` is that of ``rocm-smi`` too."""
    return sorted({*(parser_of(command) for command in (*CARDS, *TEXTS)), TOPO})


@cache
def parser_of(command: str, *arguments: str) -> str:
    """The parser's name for a command, or for a text's folder. An error for a command without a parser."""
    if command == TOPO or (command == "nvidia-smi" and arguments[:1] == (TOPO,)):
        return TOPO
    if command in CARDS:
        return next(name for name, (_, parse) in CARDS.items() if parse is CARDS[command][1])
    if command == "docker" and "logs" in arguments:
        return parser_of("v1-models")
    return next(name for name, read in TEXTS.items() if read is TEXTS[command])


def told(tool: str, arguments: list[str], text: str) -> dict[str, Any]:
    """What ``heterofleet-agent parse`` prints of it."""
    return parse_text("nvidia-smi", [TOPO, "-m"], text) if tool == TOPO else parse_text(tool, arguments, text)
