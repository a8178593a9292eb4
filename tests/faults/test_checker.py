"""The checker finds each planted fault, names its invariant, and finds nothing in a clean world."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.faults.checker import check, report
from tests.faults.ledger import Line, Told, parse_events, parse_lines
from tests.faults.truth import Start, end_fault
from tests.faults.world import Box, Card, Invariant, Scenario, World

A, B = "n-a", "n-b"


def task(status: str = "completed", code: int | None = 0, reason: str | None = "exited", *, attempt: int = 1,
         node: str = A, attempts: list[dict[str, Any]] | None = None, **members: Any) -> dict[str, Any]:  # fmt: skip
    last = {"attempt": attempt, "node_id": node, "exit_code": code, "reason": reason, "container_id": None}
    return {"uid": "u", "status": status, "exit_code": code, "reason": reason, "attempt": attempt, "phase": "running",
            "attempts": [*(attempts or []), last], "gpus_assigned": [{"uuid": "GPU-0"}], **members}  # fmt: skip


def start(box: str = "c1", at: int = 100, born: str = "1", node: str = A, run: str = "t") -> Line:
    return Line(node, "start", run, box, born, at)


def end(code: int = 0, box: str = "c1", at: int = 200, born: str = "1", node: str = A, run: str = "t") -> Line:
    return Line(node, "end", run, box, born, at, code)


def told(box: str = "c1", attempt: int = 1, *codes: int, node: str = A) -> Told:
    return Told(node, box, "t", "u", attempt, codes, 1, 2.0 if codes else None)


def box(id: str = "c1", attempt: int = 1, state: str = "exited", code: int | None = 0, node: str = A) -> Box:
    return Box(node, id, "t", "u", attempt, state, code)


def world(shown: dict[str, Any] | None, *lines: Line, told: tuple[Told, ...] = (), boxes: tuple[Box, ...] = (),
          held: tuple[str, ...] = (), wakes: int = 0) -> World:  # fmt: skip
    return World(lines, told, boxes, {"t": shown}, (Card(A, "GPU-0", held),), {"t": wakes})


RUNNING = task("running", None, None)
CLEAN = world(task(), start(), end(), told=(told("c1", 1, 0),))
MOVED = task(node=B, attempt=2, attempts=[{"attempt": 1, "node_id": A, "exit_code": None, "reason": None}])

GOOD = {
    "a program ended": (CLEAN, Scenario()),
    "a process whose first attempt there was taken back before its claim": (
        world(task(attempt=2, attempts=[{"attempt": 1, "node_id": A, "exit_code": None, "reason": None}]),
              start("p1"), end(box="p1")),
        Scenario(),
    ),
    "it runs": (
        world(RUNNING, start(), told=(told(),), boxes=(box(state="running"),), held=("t",)),
        Scenario(open=frozenset("t")),
    ),
    "it sleeps, and was awake twice": (
        world(
            task("sleeping", None, None), start(), start(at=300, born="2"), told=(told("c1", 1, 143),), boxes=(box(),),
            wakes=1,
        ),
        Scenario(open=frozenset("t")),
    ),
    "stopped before it was started": (world(task("stopped", None, "stopped_by_operator")), Scenario()),
    "killed by the grace's end, in the middle of its last words": (
        world(task("stopped", 137, "stopped_by_operator"), start(), end(0), told=(told("c1", 1, 137),)),
        Scenario(),
    ),
    "killed from outside, without a word of its own": (
        world(task("failed", 137, "signalled"), start(), told=(told("c1", 1, 137),)),
        Scenario(),
    ),
    "an image that is not there": (world(task("failed", None, "image_not_found")), Scenario()),
    "a host that was restarted": (
        world(task("failed", None, "host_restarted"), start()),
        Scenario(excused=frozenset({"host_restarted"})),
    ),
    "moved while its node was away, and stopped at contact": (
        world(MOVED, start(), start("c2", 300, node=B), end(0, "c2", 900, node=B), end(143, at=520),
              told=(told(), told("c2", 2, 0, node=B))),
        Scenario(contact={A: 5.0}, grace_s=1),
    ),
    "deleted": (world(None, start(), end()), Scenario(deleted=frozenset("t"))),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_a_clean_world_has_no_violation(name: str) -> None:
    seen, scenario = GOOD[name]
    assert check(seen, scenario) == []


PLANTED: dict[str, tuple[Invariant, World]] = {
    "an attempt started in two containers": (
        Invariant.ONCE,
        world(task(), start(), end(), start("c2", 300), end(0, "c2", 400), told=(told("c1", 1, 0), told("c2", 1, 0))),
    ),
    "a container started twice": (
        Invariant.ONCE,
        world(task(), start(), end(), start(at=300, born="2"), end(0, at=400, born="2"), told=(told("c1", 1, 0, 0),)),
    ),
    "two starts of which nobody can tell the attempt": (
        Invariant.ONCE,
        world(task(), start(), end(), start("c2", 300), end(0, "c2", 400)),
    ),
    "an attempt on a node that it was not given to": (
        Invariant.ONCE,
        world(task(), start(node=B), end(node=B), told=(told("c1", 1, 0, node=B),)),
    ),
    "a wrong exit code": (Invariant.END, world(task("failed", 3), start(), end(5), told=(told("c1", 1, 5),))),
    "a failure that is shown as success": (Invariant.END, world(task(), start(), end(1), told=(told("c1", 1, 1),))),
    "completed, and no end line": (Invariant.END, world(task(), start(), told=(told("c1", 1, 0),))),
    "completed, and never started": (Invariant.END, world(task())),
    "an end line that never started": (Invariant.END, world(task(), end())),
    "never started, it says, and it did": (
        Invariant.END,
        world(task("failed", None, "image_not_found"), start(), end(), told=(told("c1", 1, 0),)),
    ),
    "a result that was given up": (
        Invariant.END,
        world(task("failed", None, "lost_container"), start(), end(), told=(told("c1", 1, 0),)),
    ),
    "over, and it runs": (
        Invariant.END,
        world(task("failed", 1), start(), told=(told(),), boxes=(box(state="running", code=None),)),
    ),
    "a wrong end of an attempt that another one followed": (
        Invariant.END,
        world(
            task(attempt=2, attempts=[{"attempt": 1, "node_id": A, "exit_code": 4, "reason": "exited"}]),
            start(), end(0), start("c2", 300), end(0, "c2", 400), told=(told("c1", 1, 0), told("c2", 2, 0)),
        ),
    ),
    "a container that nobody needs": (
        Invariant.LEFTOVER,
        world(task(), start(), end(), told=(told("c1", 1, 0),), boxes=(box(),)),
    ),
    "a stale attempt's container": (
        Invariant.LEFTOVER,
        world(MOVED, start("c2", 300, node=B), end(0, "c2", 900, node=B), told=(told("c2", 2, 0, node=B),),
              boxes=(box(state="created"),)),
    ),
    "a task that the server forgot": (Invariant.TASK, world(None)),
    "a task that runs for ever": (
        Invariant.TASK,
        world(RUNNING, start(), end(), told=(told("c1", 1, 0),), held=("t",)),
    ),
    "running, and its container is gone": (Invariant.CONTAINER, world(RUNNING, start(), held=("t",))),
    "a held card": (Invariant.CARDS, world(task(), start(), end(), told=(told("c1", 1, 0),), held=("t",))),
    "a runner without its card": (
        Invariant.CARDS,
        world(RUNNING, start(), told=(told(),), boxes=(box(state="running"),)),
    ),
    "two attempts alive": (
        Invariant.TOGETHER,
        world(
            {**MOVED, "status": "running", "reason": None, "exit_code": None}, start(), start("c2", 300, node=B),
            told=(told(), told("c2", 2, node=B)), boxes=(box(state="running"), box("c2", 2, "running", None, B)),
        ),
    ),
    "two attempts that were alive together": (
        Invariant.TOGETHER,
        world(MOVED, start(), start("c2", 300, node=B), end(0, "c2", 900, node=B), end(0, at=500),
              told=(told(), told("c2", 2, 0, node=B))),
    ),
    "a line that was torn": (Invariant.LEDGER, world(task(), start(), end(), Line(A, "torn", "t"))),
    "a program that nobody submitted": (Invariant.LEDGER, world(task(), start(), end(), start("c9", run="other"))),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    invariant, seen = PLANTED[name]
    found = check(seen)
    assert invariant in {one.invariant for one in found}, found
    text = report(seen, found)
    assert f"BROKEN  {invariant.value}" in text
    assert all(one.text in text for one in found)


def test_a_copy_that_lives_on_after_contact_is_found() -> None:
    seen, _ = GOOD["moved while its node was away, and stopped at contact"]
    late = dataclasses.replace(seen, lines=(*seen.lines[:-1], end(143, at=750)))
    assert [one.invariant for one in check(late, Scenario(contact={A: 5.0}, grace_s=1))] == [Invariant.TOGETHER]


def test_every_invariant_has_a_planted_fault() -> None:
    assert {invariant for invariant, _ in PLANTED.values()} == set(Invariant)
    assert "BROKEN" not in report(CLEAN, [])


@pytest.mark.parametrize(
    ("shown", "start", "fault"),
    [
        (("failed", "timeout", 124), Start(A, "c", "1", 1.0), None),
        (("failed", "timeout", 137), Start(A, "c", "1", 1.0, died=137), "wanted 124"),
        (("failed", "timeout", 124), None, "never started"),
        (("failed", "exited", 2), Start(A, "c", "1", 1.0, said=2, died=2), None),
        (("failed", "exited", 2), Start(A, "c", "1", 1.0), "neither program nor engine"),
        (("failed", "exited", 2), Start(A, "c", "1", 1.0, said=2, died=3), "ended with 2 or 3"),
        (("failed", "signalled", 137), Start(A, "c", "1", 1.0, said=0, died=137), "ended with 0 or 137"),
        (("stopped", "stopped_by_operator", 143), Start(A, "c", "1", 1.0, died=143), None),
        (("stopped", "stopped_by_operator", None), Start(A, "c", "1", 1.0, died=143), "exit code None"),
        (("stopped", "stopped_by_operator", 0), None, "before its start"),
        (("cancelled", None, None), Start(A, "c", "1", 1.0), "never ran, and it did"),
        (("cancelled", None, None), None, None),
        (("failed", "end_unknown", None), Start(A, "c", "1", 1.0, said=0), "ended with 0"),
    ],
)
def test_ends(shown: tuple[str, str | None, int | None], start: Start | None, fault: str | None) -> None:
    found = end_fault(shown[0], shown[1], shown[2], start)
    assert found is None if fault is None else found is not None and fault in found


def test_lines_that_nobody_can_read_are_torn() -> None:
    text = "start t c1 5 100\nend t c1 5 110 0\nend t c1 5 11\nstart other c1 5 9\nstart t c1 5\n\nend t c1 5 110 0 7\n"
    assert [line.kind for line in parse_lines(A, "t", text)] == ["start", "end"] + ["torn"] * 5


def test_engine_events_are_counted_once() -> None:
    def event(action: str, nano: int, **more: str) -> str:
        said = {"heterofleet.task": "t", "heterofleet.uid": "u", "heterofleet.attempt": "2", **more}
        pairs = ",".join(f'"{name}":"{value}"' for name, value in said.items())
        return f'{{"Action":"{action}","timeNano":{nano},"Actor":{{"ID":"c1","Attributes":{{{pairs}}}}}}}'

    lines = [event("create", 1), event("start", 2), event("start", 2), event("die", 3_000_000_000, exitCode="5"), "{to"]
    assert parse_events(A, lines) == [Told(A, "c1", "t", "u", 2, (5,), 1, 3.0)]
