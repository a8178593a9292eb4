"""Every parser against the same mutations in every run, a few seconds each. Longer, with other seeds: ``make fuzz``."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.agent.parse.registry import CARDS, TEXTS
from tests import samples
from tests.fuzz import parsers
from tests.fuzz import texts as corpus
from tests.fuzz.mutate import mutate
from tests.fuzz.properties import wrong

EXAMPLES = 1500
"""For each parser; a number and not a time, so that a run is the same on every machine. See CONTRIBUTING.md."""
EACH = 40
"""At least, for each of a parser's texts: nvidia-smi has many."""


@pytest.mark.parametrize("tool", parsers.tools())
def test_whatever_happens_to_a_text_only_what_it_says_is_told(tool: str) -> None:
    texts = corpus.texts(tool)

    @settings(
        max_examples=max(EXAMPLES, EACH * len(texts)),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.sampled_from(texts), st.integers(0, 2**32 - 1))
    def check(text: corpus.Text, seed: int) -> None:
        changed = mutate(random.Random(seed), text, texts)
        assert wrong(tool, changed, list(text.arguments)) == []

    check()


@pytest.mark.parametrize("tool", parsers.tools())
def test_every_text_as_it_is(tool: str) -> None:
    for text in corpus.texts(tool):
        for arguments in ([], list(text.arguments)):
            assert wrong(tool, text.text, arguments) == [], text.name


def test_every_command_that_parse_knows_is_read_by_a_parser_with_texts_of_its_own() -> None:
    read = {parsers.parser_of(command) for command in (*CARDS, *TEXTS)}
    assert read | {parsers.TOPO} == set(parsers.tools())
    assert [tool for tool in parsers.tools() if not corpus.texts(tool, recorded=False)] == []
    assert {parsers.parser_of(sample.tool, *sample.arguments) for sample in samples.samples()} <= set(parsers.tools())
    folders = {path.name for path in corpus.FOLDER.iterdir() if path.is_dir()}
    assert {parsers.parser_of(folder) for folder in folders} == set(parsers.tools())
