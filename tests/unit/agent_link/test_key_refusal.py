"""What a 401 keeps from being sent, by a clock of the test's own."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from runtime.agent.link.errors import Refused
from runtime.agent.link.key_refusal import KeyRefusal
from runtime.protocol.problems import ProblemDocument

WRONG = Refused(ProblemDocument(401, "bad_api_key", "the key is not known here"))


def again_s(key: KeyRefusal, **how: Any) -> Optional[float]:
    """Seconds that a call would have to wait; None: it may be sent."""
    try:
        key.check(**how)
    except Refused as refused:
        assert refused.code == "bad_api_key"
        return refused.again_s
    return None


def test_one_call_a_minute_asks_again_and_an_answer_opens_it_for_all() -> None:
    now = [1000.0]
    key = KeyRefusal(clock=lambda: now[0])
    assert again_s(key) is None and again_s(key, asks_again=True) is None

    pause = key.refused(WRONG, sent=now[0]).again_s
    assert pause is not None and 60 <= pause <= 66
    now[0] += 30
    assert again_s(key) == again_s(key, asks_again=True) == pytest.approx(pause - 30)

    now[0] += pause - 30
    assert again_s(key) == 0 and again_s(key, asks_again=True) is None  # the beat asks for all
    again = key.refused(WRONG, sent=now[0]).again_s
    assert again is not None and 60 <= again <= 66 and again_s(key, asks_again=True) == again

    now[0] += again
    key.answered(sent=now[0])
    assert again_s(key) is None


def test_what_was_under_way_beside_the_first_refusal_changes_nothing() -> None:
    now = [1000.0]
    key = KeyRefusal(clock=lambda: now[0])
    now[0] += 2
    pause = key.refused(WRONG, sent=1000.0).again_s
    now[0] += 1
    assert pause is not None and key.refused(WRONG, sent=1001.0).again_s == pytest.approx(pause - 1)
    key.answered(sent=1001.5)  # a load balancer with servers of two minds
    assert again_s(key) == pytest.approx(pause - 1)
