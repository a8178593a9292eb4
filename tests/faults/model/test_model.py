"""Server and agent decisions together, over a model of the world; and proof that the model finds what is wrong."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runtime.agent.drivers.errors import EngineUnavailable
from runtime.agent.tasks import classify, delivery, preparing, records
from runtime.server.services.tasks import rows
from tests.faults.model.machine import walk
from tests.faults.model.world import Broken, Step, World, play

WORLDS, STEPS = 14, 180
LEAST = 2500

JOB = {"kind": "job", "attempts": 1, "lost": "wait", "cards": 1, "program": "obeys", "timeout": False}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the product says of thousands of faults is not read by anybody."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_no_work_is_lost_in_thousands_of_steps() -> None:
    """Another walk: ``python -m tests.faults.model --steps N --seed S``."""
    taken: list[int] = []

    class Counted(World):
        def close(self) -> None:
            taken.append(len(self.story))
            super().close()

    walk(WORLDS, STEPS, Counted)
    assert sum(taken) >= LEAST, f"{taken} steps: the walk does not go anywhere"


def steps(*steps: Any) -> list[Step]:
    return [(step, {}) if isinstance(step, str) else (step[0], dict(step[1])) for step in steps]


RUNS = (("submit", JOB), ("life", {"beats": 3}))
ENDS = (("program_ends", {"which": 0, "code": 3, "told": True}), ("life", {"beats": 2}))
WHOLE = steps(*RUNS, *ENDS, "settle")
START_LOST = steps(("submit", JOB), ("tick", {}), ("beat", {"node": 0}), ("take", {"node": 0}),
                   ("trouble", {"node": 0, "fates": ["good", "good", "lost"]}), ("life", {"beats": 3}),
                   "settle")  # fmt: skip
STOPPED = steps(*RUNS, ("order", {"which": 0, "action": "stop"}), ("life", {"beats": 4}), "settle")
BIG = ("submit", {**JOB, "cards": 2, "program": "stubborn"})
DELETED = steps(BIG, BIG, ("life", {"beats": 3}), ("order", {"which": 0, "action": "force-delete"}), BIG,
                ("life", {"beats": 2}), "settle")  # fmt: skip
NAPS = steps(*RUNS, ("order", {"which": 0, "action": "sleep"}), ("life", {"beats": 4}),
             ("order", {"which": 0, "action": "wake"}), ("life", {"beats": 4}), *ENDS, "settle")  # fmt: skip
REPORT_LOST = steps(*RUNS, ("fates", {"node": 0, "fates": ["good", "lost", "lost"]}), *ENDS, "settle")
STORIES = {"whole": WHOLE, "start lost": START_LOST, "stopped": STOPPED, "deleted": DELETED, "naps": NAPS,
           "report lost": REPORT_LOST}  # fmt: skip


@pytest.mark.parametrize("name", STORIES)
def test_a_story_that_the_product_gets_right(name: str) -> None:
    play(STORIES[name]).close()


def starts_twice(patch: pytest.MonkeyPatch) -> None:
    """A start without an answer is taken for one that did not happen."""
    start = preparing.Preparing.start

    def forgetful(self: Any, held: Any) -> bool:
        try:
            return start(self, held)
        except EngineUnavailable:
            self._parts.write(held, stage=records.Stage.CLAIMED, container_id=None)
            raise

    patch.setattr(preparing.Preparing, "start", forgetful)
    patch.setattr(preparing.Preparing, "_own_container", lambda self, held: None)


def keeps_a_card(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows, "free_cards", lambda tx, uid, attempt: None)


def frees_cards_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows, "keep_cards_until_gone", rows.free_cards)


def says_another_code(patch: pytest.MonkeyPatch) -> None:
    by_exit = classify._by_exit
    patch.setattr(classify, "_by_exit", lambda facts, code: dataclasses.replace(by_exit(facts, code), exit_code=4))


def leaves_the_container(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delivery.Outbound, "_remove_container", staticmethod(lambda driver, container_id, tries: None))


def forgets_what_is_not_answered(patch: pytest.MonkeyPatch) -> None:
    """An end whose answer was lost is told by nobody any more."""
    patch.setattr(delivery.Outbound, "report", lambda self, held: None)


PLANTED: list[tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = [
    (starts_twice, "start lost", "started in"),
    (keeps_a_card, "whole", "cards are held for nobody"),
    (frees_cards_too_early, "deleted", "is used by"),
    (says_another_code, "whole", "exit code 4"),
    (leaves_the_container, "whole", "left on"),
    (forgets_what_is_not_answered, "report lost", "has no end"),
]


@pytest.mark.parametrize(("plant", "story", "found"), PLANTED, ids=lambda one: getattr(one, "__name__", None))
def test_a_planted_defect_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], story: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Broken, match=found) as broken:
        play(STORIES[story])
    assert "\nstory = [" in str(broken.value)


def test_what_no_end_may_do_is_seen_at_once() -> None:
    world = play(WHOLE)
    row = world.plane.rows()[0]
    world.plane.parts.db.write(lambda tx: rows.remove(tx, rows.must_find_locked(tx, row["id"])))
    with pytest.raises(Broken, match="is lost"):
        world.watcher.end()
    box = world.nodes[0].engine.history[0]
    box.removed = False
    world.nodes[0].engine.begin(box)
    with pytest.raises(Broken, match="started again"):
        world.watcher.look()
    world.close()
