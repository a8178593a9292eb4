"""What a task prints does not command the terminal of who reads it."""

from __future__ import annotations

import pytest

from runtime.cli.terminal import TerminalText


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain \u00fc \u20ac \U0001f600\n", "plain \u00fc \u20ac \U0001f600\n"),
        ("10 %\r20 %\tdone\n", "10 %\r20 %\tdone\n"),
        ("\x1b[31;1mred\x1b[0m\n", "\x1b[31;1mred\x1b[0m\n"),
        ("\x1b[2K\r50 %", "\x1b[2K\r50 %"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b]52;c;cm0gLXJmIC8=\x07", "\\x1b]52;c;cm0gLXJmIC8=\\x07"),  # the clipboard
        ("\x1b[6n", "\\x1b[6n"),  # a question: the answer would be typed into the shell
        ("\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H"),
        ("\x9b31m \x00 \x08 \x7f", "\\x9b31m \\x00 \\x08 \\x7f"),
        ("\u202eexe.txt", "\ufffdexe.txt"),
    ],
)
def test_a_sequence_is_shown_instead_of_obeyed(text: str, shown: str) -> None:
    whole = TerminalText()
    assert whole.harmless(text) + whole.rest() == shown
    pieces = TerminalText()
    assert "".join(map(pieces.harmless, text)) + pieces.rest() == shown, "cut between any two characters"


def test_a_sequence_without_end_is_not_held_back_for_ever() -> None:
    text = TerminalText()
    assert text.harmless("\x1b[" + "1;" * 100).startswith("\\x1b[1;")
