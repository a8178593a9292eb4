"""One question to a vendor's tool: what it prints, or why that is no answer; how often what lasts is asked for. For all
vendors alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from runtime.agent.hardware.detector import CollectorError, NoAnswer
from runtime.agent.hardware.reading import Reading
from runtime.agent.hardware.tools import ToolError, ToolRunner

WIDE_EVERY = 60
"""What lasts is asked for once in this many collections (5 minutes)."""
TEXT_LIMIT = 1024 * 1024
"""Several times what any tool prints for sixteen cards, and little enough to be read in a second or two."""


def ask(runner: ToolRunner, name: str, command: Sequence[str], environment: Optional[Mapping[str, str]] = None) -> str:
    """All that it prints, on either stream. Raises NoAnswer when it does not run to its end in time, CollectorError
    when it ends in a way that makes its words worth nothing: what a crash cuts off looks like cards that are gone."""
    try:
        output = runner.run(name, command, environment=environment)
    except ToolError as error:
        raise NoAnswer(str(error)) from None
    if output.signal is not None:
        raise CollectorError(f"{name} was ended by {output.signal}")
    if output.status != 0 and not output.text.strip():
        raise CollectorError(f"{name} ended with status {output.status} and no word")
    if len(output.text) > TEXT_LIMIT:
        raise CollectorError(f"{name} printed {len(output.text) // 1024} KiB: that is no list of cards")
    return output.text


MISSING = "tool_missing"
SHOWN = 300
"""So much of a line is shown."""


def refuse_missing(name: str, path: str, reading: Reading, text: str) -> None:
    """Raises CollectorError for a tool that is here and says that something is not: a script without its program, whose
    "not found" says by itself the contrary of what is true."""
    for error in reading.errors:
        if error.kind == MISSING and not reading.cards:
            line = next((line.strip() for line in text.splitlines() if error.text in line), error.text)
            raise CollectorError(f"{name} is there ({path}) and failed: {line[:SHOWN]}")
