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
from runtime.protocol.states import Status
from runtime.protocol.tasks import Task, TaskSpec


def test_a_question_under_way_is_not_asked_again() -> None:
    """Beats were answered, all else hung: every beat put one more question per task to four workers."""
    now = [0.0]
    waiting: list[Callable[[], None]] = []

    def silent(task_id: str, token: str) -> Any:
        raise Unavailable("no answer in 30 s")

    parts: Any = SimpleNamespace(
        clock=lambda: now[0],
        client=SimpleNamespace(task=silent),
        identity=SimpleNamespace(node_id="n", booted=False, former_node_ids=[]),
        reports=SimpleNamespace(submit=lambda name, work: waiting.append(work)),
    )
    claims = Claims()
    held = Held(ClaimRecord(Key("u", 1), "a", "cp", "t", Stage.RUNNING, TaskSpec("a")))
    claims.add(held)
    intents = Intents(parts, claims, SimpleNamespace(), ServerWord())  # type: ignore[arg-type]
    answer: Any = SimpleNamespace(control_plane_id="cp", revision=1, intents=[], lost=None)

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


def test_an_id_that_was_given_to_another_task_proves_in_three_answers_that_ours_was_deleted() -> None:
    """The old container ran for ever, and held its cards: nobody answered "not found" about its id any more."""
    now = [0.0]
    abandoned: list[str] = []
    waiting: list[Callable[[], None]] = []
    uid = ["another"]
    parts: Any = SimpleNamespace(
        clock=lambda: now[0],
        client=SimpleNamespace(task=lambda task_id, token: Task(task_id, uid[0], Status.RUNNING, 1, "n"),
                               control_plane_id="cp"),
        identity=SimpleNamespace(node_id="n", booted=False, former_node_ids=[]),
        reports=SimpleNamespace(submit=lambda name, work: waiting.append(work)),
    )  # fmt: skip
    claims = Claims()
    claims.add(Held(ClaimRecord(Key("u", 1), "a", "cp", "t", Stage.RUNNING, TaskSpec("a"))))
    way: Any = SimpleNamespace(abandon=lambda held, why: abandoned.append(why))
    intents = Intents(parts, claims, way, ServerWord())
    answer: Any = SimpleNamespace(control_plane_id="cp", revision=1, intents=[], lost=None)

    def beat() -> int:
        now[0] += 6.0
        intents.on_answer(answer)
        while waiting:
            waiting.pop()()
        return len(abandoned)

    assert [beat() for _ in range(4)] == [0, 0, 0, 1], "the first beat may have been on its way before the claim"
    abandoned.clear()
    uid[0] = "u"
    beat()
    uid[0] = "another"
    assert [beat() for _ in range(2)] == [0, 0], "an answer about ours makes void what was counted"
    answer.control_plane_id = "another-cp"
    assert [beat() for _ in range(3)] == [0, 0, 0]
