"""Known secret values, in every form they take on the way to a log."""

from __future__ import annotations

import base64
import io
import logging
from urllib.parse import quote

import pytest

from runtime.protocol.masking import MASK, Masker, MaskingFormatter, set_up_logging

SECRET = "pässw/rd+1 &x"


@pytest.fixture
def masker() -> Masker:
    masker = Masker()
    masker.add(SECRET)
    return masker


@pytest.mark.parametrize(
    "form",
    [SECRET, quote(SECRET), quote(SECRET, safe=""), base64.b64encode(SECRET.encode()).decode()],
)
def test_a_value_is_masked_in_every_form(masker: Masker, form: str) -> None:
    assert masker.text(f"before {form} after {form}.") == f"before {MASK} after {MASK}."


def test_a_value_inside_another_base64_text_is_masked(masker: Masker) -> None:
    """Registry and proxy credentials travel as base64 of user:password, so the value starts anywhere in it."""
    alone = base64.b64encode(SECRET.encode()).decode()
    for prefix in ("", "u:", "us:", "user:"):
        text = base64.b64encode(f"{prefix}{SECRET}:tail".encode()).decode()
        masked = masker.text(text)
        # At either end one character may be made of bits of a neighbour too; it alone tells nothing.
        assert len(masked) - len(MASK) <= len(text) - len(alone) + 4, masked


def test_json_and_python_texts_of_a_value_are_masked() -> None:
    """A value with quotes or line breaks is written otherwise in JSON and in a repr."""
    import json

    masker = Masker()
    value = 'line one\nand "two"\\three'
    masker.add(value)
    assert masker.text(json.dumps({"password": value})) == json.dumps({"password": MASK})
    assert value not in masker.text(repr(value))
    assert "and" not in masker.text(repr(value))


def test_the_longest_value_wins() -> None:
    masker = Masker()
    masker.add("secret")
    masker.add("secret-and-more")
    assert masker.text("x secret-and-more y secret z") == f"x {MASK} y {MASK} z"


@pytest.mark.parametrize("value", [None, "", "abc"])
def test_what_is_no_secret_tears_nothing(value: str | None) -> None:
    masker = Masker()
    masker.add(value)
    assert masker.text("abcabc text") == "abcabc text"


def test_a_log_record_is_masked_with_its_arguments_and_traceback(masker: Masker) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(MaskingFormatter(masker))
    logger = logging.Logger("t")
    logger.addHandler(handler)
    try:
        raise RuntimeError(f"cannot log in with {SECRET}")
    except RuntimeError:
        logger.exception("failed for %s", SECRET, stack_info=True)
    text = stream.getvalue()
    assert "RuntimeError" in text
    assert text.count(MASK) >= 2
    assert SECRET not in text


def test_logging_is_set_up_masked(masker: Masker, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        set_up_logging(masker)
        logging.getLogger("some.part").info("key %s", SECRET)
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    err = capsys.readouterr().err
    assert f"INFO some.part: key {MASK}" in err
