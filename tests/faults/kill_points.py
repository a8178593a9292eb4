"""The agent killed at every step of a task's way: the points come from a traced run, and nothing is lost at any.

    python -m tests.faults.kill_points [--rounds 3] [--points N] [--ways plain,pulled] [--record]

One run of each way (:mod:`tests.faults.ways`) is watched from outside; each moment that was seen is a point. Then,
for each point, a fresh task: SIGKILL exactly there, systemd starts the agent again, and the task must come to its only
right end with all invariants. Nodes work side by side.
"""

from __future__ import annotations

import argparse
import itertools
import queue
import secrets
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.agent.tasks.steps import Step
from tests.bench.__main__ import record
from tests.bench.measure import Figure
from tests.faults import facts
from tests.faults.checker import report
from tests.faults.fleet import Fleet, fleet
from tests.faults.moments import PULL, Moment, Witness
from tests.faults.ways import WAYS, Way, make_ready, with_image
from tests.faults.world import Scenario
from tests.lab import Lab
from tests.lab.process import LabError

TRIES = 3
LEAST_POINTS = 25
MOST_NODES = 3


@dataclass(frozen=True)
class Point:
    way: Way
    moment: Moment

    def __str__(self) -> str:
        return f"{self.way.name}: {self.moment}"

    @property
    def step(self) -> Step | None:
        return step_of(self.moment)


@dataclass
class Outcome:
    """What came of one kill; ``faults`` is empty when all held. ``missed``: the way never came by there."""

    point: Point
    node: str
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    missed: bool = False


def step_of(moment: Moment) -> Step | None:
    """The named step that a kill at this moment interrupts; None: it is between the steps (a look, an offer)."""
    state, what = moment.state, moment.what
    if moment.side == "commit":
        return _of_commit(state.split(), what.split())
    if what == PULL:
        return Step.PULL_DONE if moment.side == "after" else Step.PULL_START
    if what.startswith("HEAD /containers/{id}/archive"):
        return Step.CREATED if state.startswith("created") else Step.ENDED
    if what.startswith("GET /containers/{id}/json"):
        if what.endswith(": exited"):
            return Step.ENDED
        return Step.STARTED if state.startswith("starting") else None
    return _BY_CALL.get(what.partition(" ")[0] if what.startswith("report") else what)


def _of_commit(before: list[str], after: list[str]) -> Step | None:
    """By the new stage; within one stage by the word that is new."""
    if before[0] != after[0]:
        return _BY_STAGE.get(after[0])
    new = [word for word in after if word not in before]
    return next((_BY_WORD[word] for word in new if word in _BY_WORD), None)


_BY_STAGE = {
    "claiming": Step.JOURNAL_CLAIM,
    "claimed": Step.CLAIM_STORED,
    "created": Step.CREATED,
    "starting": Step.JOURNAL_START,
    "running": Step.STARTED,
    "concluded": Step.CONCLUDE,
    "done": Step.REPORT_STORED,
    "-": Step.FORGET,
}
_BY_WORD = {
    "pulled": Step.PULL_DONE,
    "ready": Step.PROBE_READY,
    "intended": Step.JOURNAL_STOP,
    "sent": Step.SIGNAL,
    "missed": Step.SIGNAL,
}
_BY_CALL = {
    "claim": Step.SEND_CLAIM,
    "GET /images/{name}/json": Step.CHECK,
    "POST /containers/create": Step.CREATE,
    "POST /containers/{id}/start": Step.START,
    "POST /containers/{id}/kill": Step.SIGNAL,
    "GET /containers/{id}/logs": Step.CONCLUDE,
    "report": Step.SEND_REPORT,
    "DELETE /containers/{id}": Step.REMOVE,
}


class Runner:
    """Walks ways on the fleet's nodes, one at a time on each."""

    def __init__(self, lab: Lab, built: Fleet) -> None:
        self.fleet = built
        self.ways = [with_image(way, lab) for way in WAYS]
        self.witnesses = [Witness(place) for place in built.places]

    def walk(self, witness: Witness, way: Way, target: Moment | None = None) -> str:
        """One task on its way, to its end; its id."""
        make_ready(way, self.fleet, witness)
        task_id = f"kp-{way.name}-{secrets.token_hex(4)}"
        witness.follow(task_id, [target] if target is not None else [])
        members = {"gpus": {"count": 1}, **way.members, "node_id": witness.place.name}
        self.fleet.submit(task_id, *way.words, **members)
        way.play(self.fleet, witness, task_id)
        self.fleet.wait(task_id, "ended")
        return task_id

    def faults(self, witness: Witness, way: Way, task_id: str) -> list[str]:
        """What is wrong with the world of one task, once it has settled."""
        _, found = facts.settle(self.fleet.plane, [witness.place.node], [task_id], only=True)
        wrong = way.wrong(self.fleet.task(task_id))
        return [*([wrong] if wrong else []), *map(str, found)]

    def trace(self, names: Iterable[str] | None = None) -> list[Point]:
        """The points: each moment that one undisturbed walk of each way came by, in order."""
        found: dict[str, list[Point]] = {}

        def one(witness: Witness, way: Way) -> None:
            faults = self.faults(witness, way, self.walk(witness, way))
            assert not faults, f"{way.name}, undisturbed: {faults}"
            seen = [moment for moment in witness.moments if moment.lives >= way.first_life]
            moments = dict.fromkeys(itertools.dropwhile(lambda moment: way.own_from not in str(moment), seen))
            found[way.name] = [Point(way, moment) for moment in moments]

        wanted = [way for way in self.ways if names is None or way.name in names]
        self._on_all(wanted, one)
        return [point for way in wanted for point in found[way.name]]

    def kill(self, points: Sequence[Point]) -> list[Outcome]:
        """A kill at each point; in the order of the points."""
        outcomes: dict[int, Outcome] = {}

        def one(witness: Witness, numbered: tuple[int, Point]) -> None:
            outcomes[numbered[0]] = self._kill_at(witness, numbered[1])

        self._on_all(list(enumerate(points)), one)
        return [outcomes[number] for number in range(len(points))]

    def _kill_at(self, witness: Witness, point: Point) -> Outcome:
        outcome = Outcome(point, witness.place.name)
        began = time.monotonic()
        for _ in range(TRIES):
            try:
                task_id = self.walk(witness, point.way, point.moment)
                outcome.faults = self.faults(witness, point.way, task_id)
            except (AssertionError, LabError) as error:
                outcome.faults = [str(error)]
            outcome.missed = bool(witness.left)
            if outcome.faults or not outcome.missed:
                break
        outcome.seconds = time.monotonic() - began
        mark = "LOST  " if outcome.faults else "missed" if outcome.missed else "held  "
        print(f"{mark} {outcome.seconds:5.1f} s  {witness.place.name}  {point}", flush=True)
        for fault in outcome.faults:
            print(f"        {fault}", flush=True)
        return outcome

    def _on_all(self, subjects: Sequence[Any], work: Callable[[Witness, Any], None]) -> None:
        """``work(witness, subject)`` for each subject, a node at a time takes one."""
        waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for subject in subjects:
            waiting.put(subject)
        errors: list[BaseException] = []

        def on(witness: Witness) -> None:
            while not errors:
                try:
                    subject = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    work(witness, subject)
                except BaseException as error:
                    errors.append(error)

        threads = [threading.Thread(target=on, args=(witness,)) for witness in self.witnesses]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


def spread(points: Sequence[Point], count: int) -> list[Point]:
    """``count`` of the points: first one of each step, then of each way in turn, evenly along it."""
    chosen: dict[Point, None] = {}
    by_step: dict[Step | None, list[Point]] = defaultdict(list)
    for point in points:
        by_step[point.step].append(point)
    for step, own in by_step.items():
        if step is not None:
            chosen[own[len(own) // 2]] = None
    rest: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        if point not in chosen:
            rest[point.way.name].append(point)
    wanted = max(0, count - len(chosen))
    each = [own[:: max(1, len(own) * len(rest) // max(1, wanted))] for own in rest.values()]
    for point in itertools.chain.from_iterable(itertools.zip_longest(*each)):
        if point is not None and len(chosen) < count:
            chosen[point] = None
    return [point for point in points if point in chosen]


def coverage(points: Iterable[Point]) -> dict[Step, list[Point]]:
    """Which points cover which named step; every step has an entry."""
    found: dict[Step, list[Point]] = {step: [] for step in Step}
    for point in points:
        if point.step is not None:
            found[point.step].append(point)
    return found


def told(points: Sequence[Point]) -> str:
    """Which point covers which step, for people."""
    lines = []
    for step, own in coverage(points).items():
        lines.append(f"{step.value}: {len(own)} point(s)")
        lines += [f"    {point}" for point in own]
    other = [point for point in points if point.step is None]
    lines.append(f"between the steps: {len(other)} point(s)")
    return "\n".join([*lines, *(f"    {point}" for point in other)])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--points", type=int, help="so many of them, spread over steps and ways; all without it")
    parser.add_argument("--ways", help=f"of {', '.join(way.name for way in WAYS)}; all without it")
    parser.add_argument("--record", action="store_true", help="add the figures to tests/bench/RESULTS.md")
    options = parser.parse_args(arguments)
    lab = Lab.attach()
    nodes = lab.nodes[:MOST_NODES]
    began = time.monotonic()
    with fleet(nodes, watch_commits=True) as built:
        runner = Runner(lab, built)
        points = runner.trace(options.ways.split(",") if options.ways else None)
        print(told(points), flush=True)
        if options.points:
            points = spread(points, options.points)
        outcomes = [outcome for _ in range(options.rounds) for outcome in runner.kill(points)]
        world, found = facts.settle(built.plane, built.nodes, built.accepted, Scenario())
        print(report(world, found))
    took = time.monotonic() - began
    lost = [outcome for outcome in outcomes if outcome.faults]
    missed = [outcome for outcome in outcomes if outcome.missed and not outcome.faults]
    steps = {outcome.point.step for outcome in outcomes if not outcome.missed} - {None}
    seen = (
        f"{len(points)} points x {options.rounds} rounds on {len(nodes)} nodes in {took:.0f} s: "
        f"{len(outcomes) - len(lost) - len(missed)} held, {len(lost)} lost, {len(missed)} not come by; "
        f"{len(steps)} of {len(Step)} named steps killed"
    )
    print(seen)
    for outcome in lost:
        print(f"  {outcome.point}: {'; '.join(outcome.faults)}")
    kept = not lost and not found and len(steps) == len(Step)
    if options.record:
        record([Figure("faults: the agent killed at every moment of a task's way", seen, "all invariants hold", kept)])
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
