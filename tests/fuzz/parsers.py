"""The parsers of cards there are, by the tool's name."""

from __future__ import annotations

from functools import cache

from runtime.agent.hardware.reading import Parser
from runtime.agent.parse.registry import CARDS
from tests import samples
from tests.fuzz import texts as corpus


def parser(tool: str) -> Parser:
    """The parser of a tool; an error when it has none."""
    return CARDS[tool][1]


@cache
def tools() -> list[str]:
    """All tools whose texts we have and whose text has a parser of cards."""
    named = {path.name for path in corpus.FOLDER.iterdir() if path.is_dir()}
    named.update(sample.tool for sample in samples.samples())
    return sorted(named & set(CARDS))
