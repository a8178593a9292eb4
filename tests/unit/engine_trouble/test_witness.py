"""What an engine told of a container's last run, in whatever order its news come."""

from __future__ import annotations

import threading

import pytest

from runtime.agent.drivers.witness import Witness


@pytest.mark.parametrize(
    ("news", "expected"),
    [
        (("start", "oom", "die"), True),
        (("start", "die", "oom"), True),
        (("start", "oom", "start", "kill", "die"), False),
        (("start", "kill", "die"), False),
        (("die", "oom", "destroy", "kill"), False),
        ((), False),
    ],
)
def test_a_kill_for_memory_is_of_the_last_run(news: tuple[str, ...], expected: bool) -> None:
    witness = Witness(clock=lambda: 100.0)
    for what in news:
        witness.heard(what, "one")
    assert witness.killed_for_memory("one") is expected
    assert not witness.killed_for_memory("other")


def test_news_that_come_after_the_end_are_waited_for() -> None:
    """A container reached its limit. The engine heard of its end before it heard why, its flag stayed unset, and the
    task was told to have been killed by somebody."""
    witness, answers = Witness(), []
    witness.heard("start", "one")
    witness.heard("die", "one")
    asked = threading.Thread(target=lambda: answers.append(witness.killed_for_memory("one")))
    asked.start()
    witness.heard("oom", "one")
    asked.join(10)
    assert answers == [True]


def test_an_end_that_nobody_explains_is_not_waited_for_for_ever() -> None:
    moments = iter([0.0, 0.0, 0.2, 5.0])
    witness = Witness(clock=lambda: next(moments))
    witness.opened()
    witness.heard("die", "one")
    assert witness.killed_for_memory("one") is False
