"""What of a log's answer is shown: each byte once, by its position and not by its text."""

from __future__ import annotations

from typing import cast

import pytest

from runtime.cli.client import Client
from runtime.cli.follow import LogReader
from runtime.protocol.tasks import LogText


def test_what_was_shown_is_not_shown_again() -> None:
    shown: list[str] = []
    reader = LogReader(cast(Client, None), "t1", shown.append)
    assert reader.take(LogText(1, 0, 5, "caf\ufffd\n"))
    assert not reader.take(LogText(1, 0, 5, "caf\ufffd\n"))  # its text is longer than its bytes
    assert reader.take(LogText(1, 5, 9, "two\n"))
    assert not reader.take(LogText(1, 9, 9, ""))
    assert shown == ["caf\ufffd\n", "two\n"]


def test_a_gap_at_the_end_is_said_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    reader = LogReader(cast(Client, None), "t1", lambda text: None)
    gap = LogText(1, 7, 7, "")
    assert [reader.take(gap), reader.take(gap)] == [True, False]
    assert reader.position == 7 and "[7 bytes of output are gone" in capsys.readouterr().err
