"""Every parser against the same mutations in every run: about three seconds each. Longer, with other seeds:
``python -m tests.fuzz --seconds 120``."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import parsers
from tests.fuzz import texts as corpus
from tests.fuzz.mutate import mutate
from tests.fuzz.truth import lies

EXAMPLES = 1500


@pytest.mark.parametrize("tool", parsers.tools())
def test_whatever_happens_to_a_text_only_what_it_says_is_told(tool: str) -> None:
    parse, texts = parsers.parser(tool), corpus.texts(tool)

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.sampled_from(texts), st.randoms(use_true_random=False))
    def check(text: corpus.Text, rng: random.Random) -> None:
        changed = mutate(rng, text, texts)
        assert lies(parse(list(text.arguments), changed), changed, list(text.arguments)) == []

    check()


@pytest.mark.parametrize("tool", parsers.tools())
def test_every_text_as_it_is(tool: str) -> None:
    for text in corpus.texts(tool):
        for arguments in ([], list(text.arguments)):
            assert lies(parsers.parser(tool)(arguments, text.text), text.text, arguments) == [], text.name


def test_every_folder_of_texts_has_a_parser() -> None:
    folders = {path.name for path in corpus.FOLDER.iterdir() if path.is_dir()}
    assert folders <= set(parsers.tools()) and all(corpus.own(tool) for tool in folders)
