"""The invariants: what must hold of every world, whatever failed in it. Pure: facts in, violations out.

The facts come from three places that are not the product's own word: the tasks' ledger, the nodes' engines
(inspect and events), and the server's API. A scenario says what it has done itself (:class:`Scenario`); all else
is a violation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.faults.truth import UNSTARTED, Start, end_fault
from tests.faults.world import TERMINAL, Invariant, Scenario, Violation, World

CENTI = 100


def check(world: World, scenario: Scenario = Scenario()) -> list[Violation]:
    """Every violation, in the order of the invariants."""
    return sorted(_check(world, scenario), key=lambda found: list(Invariant).index(found.invariant))


def _check(world: World, scenario: Scenario) -> Iterator[Violation]:
    starts = _starts(world)
    for line in world.lines:
        if line.kind == "torn":
            yield Violation(Invariant.LEDGER, line.run, f"a torn line on {line.node}")
        elif line.run not in world.tasks:
            yield Violation(Invariant.LEDGER, line.run, f"ran on {line.node}, and nobody submitted it")
    for key in _ends_without_start(world):
        yield Violation(Invariant.END, key[0], f"an end in {key[1][:12]} that never started")
    for task_id, task in world.tasks.items():
        own = starts.get(task_id, [])
        yield from _known(task_id, task, scenario)
        yield from _once(task_id, task, own, world)
        yield from _together(task_id, task, own, scenario)
        yield from _ends(task_id, task, own, world, scenario)
        yield from _container(task_id, task, world)
    yield from _leftovers(world)
    yield from _cards(world)


def _starts(world: World) -> dict[str, list[Start]]:
    """Each start of each container, with its end and what the engine said of it."""
    ends = {(line.run, line.box, line.born): line for line in world.lines if line.kind == "end"}
    told = {one.box: one for one in world.told}
    boxes = {box.id: box for box in world.boxes}
    found: dict[str, list[Start]] = defaultdict(list)
    for line in world.lines:
        if line.kind != "start":
            continue
        end, said, box = ends.get((line.run, line.box, line.born)), told.get(line.box), boxes.get(line.box)
        owner = said or box
        codes = said.codes if said is not None else ()
        died: int | None = codes[-1] if codes else None
        if box is not None and box.state == "exited":
            died = box.exit_code
        gone_at = None if said is None or said.last_end is None else (said.last_end - world.clock_offset) * CENTI
        found[line.run].append(
            Start(
                node=line.node,
                box=line.box,
                born=line.born,
                at=line.at / CENTI,
                attempt=owner.attempt if owner is not None else None,
                said=end.code if end is not None else None,
                died=died,
                alive=box is not None and box.alive and end is None,
                over_at=(end.at if end is not None else gone_at if gone_at is not None else line.at) / CENTI,
            )
        )
    return found


def _ends_without_start(world: World) -> Iterable[tuple[str, str, str]]:
    begun = {(line.run, line.box, line.born) for line in world.lines if line.kind == "start"}
    ended = {(line.run, line.box, line.born) for line in world.lines if line.kind == "end"}
    return sorted(ended - begun)


def _known(task_id: str, task: Mapping[str, Any] | None, scenario: Scenario) -> Iterator[Violation]:
    if task is None:
        if task_id not in scenario.deleted:
            yield Violation(Invariant.TASK, task_id, "was accepted, and the server does not know it")
    elif task["status"] not in TERMINAL and task_id not in scenario.open:
        text = f"has no end: {task['status']}, phase {task.get('phase')}, attempt {task['attempt']}"
        yield Violation(Invariant.TASK, task_id, text)


def _once(task_id: str, task: Mapping[str, Any] | None, starts: list[Start], world: World) -> Iterator[Violation]:
    times: dict[str, list[Start]] = defaultdict(list)
    by_attempt: dict[int, set[str]] = defaultdict(set)
    places = {one["attempt"]: one["node_id"] for one in (task or {}).get("attempts") or ()}
    for start in starts:
        times[start.box].append(start)
        if start.attempt is None:
            continue
        by_attempt[start.attempt].add(start.box)
        if task is not None and places.get(start.attempt, start.node) != start.node:
            text = f"attempt {start.attempt} belongs to {places[start.attempt]} and started on {start.node}"
            yield Violation(Invariant.ONCE, task_id, text)
        if places and start.attempt not in places:
            yield Violation(Invariant.ONCE, task_id, f"attempt {start.attempt} started and was never given out")
    for attempt, boxes in by_attempt.items():
        if len(boxes) > 1:
            yield Violation(Invariant.ONCE, task_id, f"attempt {attempt} started in {len(boxes)} containers")
    for box, all_of in times.items():
        allowed = 1 + world.wakes.get(task_id, 0)
        if len(all_of) > allowed:
            text = f"container {box[:12]} started {len(all_of)} times, wanted at most {allowed}"
            yield Violation(Invariant.ONCE, task_id, text)
    if task is not None and places:
        yield from _nameless(task_id, starts, places)


def _nameless(task_id: str, starts: list[Start], places: Mapping[int, str | None]) -> Iterator[Violation]:
    """Starts whose attempt nobody can tell (processes, an engine that lost its events): no more of them on a node
    than attempts there that have no start yet."""
    used = {start.attempt for start in starts}
    for node in {start.node for start in starts if start.attempt is None}:
        here = {start.box for start in starts if start.attempt is None and start.node == node}
        free = sum(1 for attempt, place in places.items() if place == node and attempt not in used)
        if len(here) > free:
            text = f"started {len(here)} times on {node} beside its known attempts, which leaves room for {free}"
            yield Violation(Invariant.ONCE, task_id, text)


def _together(
    task_id: str, task: Mapping[str, Any] | None, starts: list[Start], scenario: Scenario
) -> Iterator[Violation]:
    alive = [start for start in starts if start.alive]
    if len({start.box for start in alive}) > 1:
        text = "alive together now: " + ", ".join(f"attempt {start.attempt} on {start.node}" for start in alive)
        yield Violation(Invariant.TOGETHER, task_id, text)
    elif alive and task is not None and alive[0].attempt not in (None, task["attempt"]):
        text = f"attempt {alive[0].attempt} is alive on {alive[0].node}, and attempt {task['attempt']} is the valid one"
        yield Violation(Invariant.TOGETHER, task_id, text)
    for earlier in starts:
        for later in starts:
            if later.at <= earlier.at or later.box == earlier.box or earlier.alive:
                continue
            contact = scenario.contact.get(earlier.node)
            allowed = later.at if contact is None else max(later.at, contact + scenario.grace_s)
            if earlier.over_at > allowed:
                text = (
                    f"attempt {earlier.attempt} on {earlier.node} lived {earlier.over_at - later.at:.1f} s beside "
                    f"attempt {later.attempt} on {later.node}"
                )
                yield Violation(Invariant.TOGETHER, task_id, text)


def _ends(
    task_id: str, task: Mapping[str, Any] | None, starts: list[Start], world: World, scenario: Scenario
) -> Iterator[Violation]:
    if task is None:
        return
    attempts = list(task.get("attempts") or ())
    for one in attempts:
        # A start that nobody can name counts for the only attempt on its node that may have started.
        alone = [other["attempt"] for other in attempts if other["node_id"] == one["node_id"]
                 and (other["attempt"] == task["attempt"] or _may_have_run(other))] == [one["attempt"]]  # fmt: skip
        own = [start for start in starts if start.attempt == one["attempt"]
               or (start.attempt is None and alone and start.node == one["node_id"])]  # fmt: skip
        last = max(own, key=lambda start: start.at) if own else None
        final = one["attempt"] == task["attempt"] and task["status"] in TERMINAL
        if not final and one.get("reason") is None:
            continue
        status = task["status"] if final else None
        fault = end_fault(status, one.get("reason") if not final else task["reason"],
                          one.get("exit_code") if not final else task["exit_code"], last, scenario.excused)  # fmt: skip
        if fault is not None:
            yield Violation(Invariant.END, task_id, f"attempt {one['attempt']}: {fault}")
    if not attempts and task["status"] in TERMINAL:
        last = starts[-1] if starts else None
        fault = end_fault(task["status"], task["reason"], task["exit_code"], last, scenario.excused)
        if fault is not None:
            yield Violation(Invariant.END, task_id, fault)


def _may_have_run(attempt: Mapping[str, Any]) -> bool:
    """Of an attempt that another one followed: one without a reason was taken back before its claim."""
    return attempt.get("reason") is not None and attempt["reason"] not in UNSTARTED


def _container(task_id: str, task: Mapping[str, Any] | None, world: World) -> Iterator[Violation]:
    """What the server counts on is there."""
    if task is None or task["status"] not in ("running", "sleeping"):
        return
    if task["status"] == "running" and task.get("phase") not in ("loading", "running"):
        return  # it has not begun, or is about to end
    if task["status"] == "sleeping" and task.get("driver") == "process":
        return  # nothing is kept of a process but its record
    own = [box for box in world.boxes if (box.uid, box.attempt) == (task["uid"], task["attempt"])]
    if not any(box.alive == (task["status"] == "running") for box in own):
        found = ", ".join(f"{box.id[:12]} {box.state}" for box in own) or "none"
        yield Violation(Invariant.CONTAINER, task_id, f"is {task['status']}; its containers: {found}")


def _leftovers(world: World) -> Iterator[Violation]:
    valid = {(task["uid"], task["attempt"]) for task in world.tasks.values()
             if task is not None and task["status"] not in TERMINAL}  # fmt: skip
    for box in world.boxes:
        if (box.uid, box.attempt) not in valid:
            text = f"container {box.id[:12]} of attempt {box.attempt} is {box.state} on {box.node}, and nobody needs it"
            yield Violation(Invariant.LEFTOVER, box.task_id, text)


def _cards(world: World) -> Iterator[Violation]:
    held: dict[str, set[str]] = defaultdict(set)
    for task_id, task in world.tasks.items():
        if task is not None and task["status"] in ("scheduled", "running"):
            for card in task.get("gpus_assigned") or ():
                held[card["uuid"]].add(task_id)
    for card in world.cards:
        for task_id in set(card.allocated_to) - held[card.uuid]:
            yield Violation(Invariant.CARDS, task_id, f"card {card.uuid} of {card.node} is still held for it")
        for task_id in held[card.uuid] - set(card.allocated_to):
            yield Violation(Invariant.CARDS, task_id, f"runs on {card.uuid} of {card.node}, which is not allocated")
        if len(held[card.uuid]) > 1 and card.mode == "whole":
            yield Violation(Invariant.CARDS, card.uuid, f"given to {len(held[card.uuid])} tasks at once")


def report(world: World, found: list[Violation]) -> str:
    """The invariant report: what was looked at, each invariant, and every violation under its own."""
    ended = sum(1 for task in world.tasks.values() if task is not None and task["status"] in TERMINAL)
    starts = sum(1 for line in world.lines if line.kind == "start")
    held = sum(1 for card in world.cards if card.allocated_to)
    lines = [
        f"{len(world.tasks)} tasks, {ended} ended, {starts} starts in the ledger, "
        f"{len(world.boxes)} containers there now, {held} of {len(world.cards)} cards held"
    ]
    for invariant in Invariant:
        own = [violation for violation in found if violation.invariant is invariant]
        lines.append(f"  {'holds ' if not own else 'BROKEN'}  {invariant.value}" + (f": {len(own)}" if own else ""))
        lines += [f"            {violation.subject}: {violation.text}" for violation in own]
    return "\n".join(lines)
