"""The texts that are mutated: ``corpus/<tool>/*.txt``, all invented, and the recorded ones beside the checkout."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests import samples
from tests.fuzz.parsers import parser_of

FOLDER = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Text:
    """``arguments``: those the tool was given, from the file of the same name that ends in ``.args``."""

    name: str
    arguments: tuple[str, ...]
    text: str


@cache
def own(tool: str) -> tuple[Text, ...]:
    """The committed texts of a tool's folder."""
    return tuple(_text(path) for path in sorted((FOLDER / tool).glob("*.txt")))


@cache
def texts(tool: str, *, recorded: bool = True) -> tuple[Text, ...]:
    """The texts of all commands that one parser reads: the committed ones, and the recorded ones unless told not to."""
    folders = sorted(path.name for path in FOLDER.iterdir() if path.is_dir() and parser_of(path.name) == tool)
    committed = [text for folder in folders for text in own(folder)]
    beside = [
        Text(sample.name, sample.arguments, sample.text)
        for sample in (samples.samples() if recorded else [])
        if parser_of(sample.tool, *sample.arguments) == tool
    ]
    return (*committed, *beside)


def _text(path: Path) -> Text:
    arguments = path.with_suffix(".args")
    words = shlex.split(arguments.read_text("utf-8")) if arguments.exists() else []
    return Text(path.stem, tuple(words), path.read_bytes().decode("utf-8", "replace"))
