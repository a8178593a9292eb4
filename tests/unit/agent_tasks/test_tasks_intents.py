"""Questions about tasks that the server does not name any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable

from runtime.agent.link.errors import Unavailable
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.intents import Intents
from runtime.agent.tasks.parts import Claims
from runtime.agent.tasks.records import ClaimRecord, Key, Stage
from runtime.agent.tasks.zombies import ServerWord
from runtime.protocol.tasks import TaskSpec


def test_a_question_under_way_is_not_asked_again() -> None:
    """Beats were answered, all else hung: every beat put one more question per task to four workers."""
    now = [0.0]
    waiting: list[Callable[[], None]] = []

    def silent(task_id: str, token: str) -> Any:
        raise Unavailable("no answer in 30 s")

    parts: Any = SimpleNamespace(
        clock=lambda: now[0],
        client=SimpleNamespace(task=silent),
        identity=SimpleNamespace(node_id="n"),
        reports=SimpleNamespace(submit=lambda name, work: waiting.append(work)),
    )
    claims = Claims()
    held = Held(ClaimRecord(Key("u", 1), "a", "cp", "t", Stage.RUNNING, TaskSpec("a")))
    claims.add(held)
    intents = Intents(parts, claims, SimpleNamespace(), ServerWord())  # type: ignore[arg-type]
    answer: Any = SimpleNamespace(control_plane_id="cp", revision=1, intents=[])

    def beats(number: int) -> None:
        for _ in range(number):
            now[0] += 5.0
            intents.on_answer(answer)

    beats(10)
    assert len(waiting) == 1
    waiting.pop()()
    beats(1)
    assert len(waiting) == 1
    claims.drop(held.key)
    beats(1)
    assert intents.remembered == 0
