"""SIGKILL to the real agent wherever a traced run of a task's way came by; nothing is lost at any of the points.

`python -m tests.faults.kill_points --rounds 3` takes all of them, three times; here it is a spread over all steps and
all ways.
"""

from __future__ import annotations

import pytest

from runtime.agent.tasks.steps import Step
from tests.faults import kill_points
from tests.faults.fleet import Fleet
from tests.faults.kill_points import Point, Runner, spread, step_of
from tests.faults.moments import Moment
from tests.faults.ways import WAYS
from tests.lab import Lab

POINTS = 30


@pytest.mark.timeout(900)
def test_nothing_is_lost_wherever_the_agent_is_killed(lab: Lab, fleet: Fleet) -> None:
    runner = Runner(lab, fleet)
    points = runner.trace()
    print(kill_points.told(points))
    assert len(points) >= kill_points.LEAST_POINTS
    assert [step for step, own in kill_points.coverage(points).items() if not own] == []
    outcomes = runner.kill(spread(points, POINTS))
    assert {str(outcome.point): outcome.faults for outcome in outcomes if outcome.faults} == {}
    hit = [outcome.point for outcome in outcomes if not outcome.missed]
    assert {point.step for point in hit} >= set(Step)
    assert len(hit) >= kill_points.LEAST_POINTS
    fleet.hold()


@pytest.mark.parametrize(
    ("moment", "step"),
    [
        (Moment("-", "after", "offer"), None),
        (Moment("-", "commit", "claiming"), Step.JOURNAL_CLAIM),
        (Moment("claiming", "before", "claim"), Step.SEND_CLAIM),
        (Moment("claiming", "commit", "claimed"), Step.CLAIM_STORED),
        (Moment("claimed", "before", "GET /images/{name}/json"), Step.CHECK),
        (Moment("claimed", "amid", "POST /images/create"), Step.PULL_START),
        (Moment("claimed", "after", "POST /images/create"), Step.PULL_DONE),
        (Moment("claimed", "commit", "claimed pulled"), Step.PULL_DONE),
        (Moment("claimed pulled", "commit", "created pulled"), Step.CREATED),
        (Moment("created", "commit", "starting"), Step.JOURNAL_START),
        (Moment("starting", "before", "GET /containers/{id}/json"), Step.STARTED),
        (Moment("running", "before", "GET /containers/{id}/json"), None),
        (Moment("running", "commit", "running ready"), Step.PROBE_READY),
        (Moment("running ready", "commit", "running ready stop timeout intended"), Step.JOURNAL_STOP),
        (Moment("running stop timeout intended", "commit", "running stop timeout sent"), Step.SIGNAL),
        (Moment("running stop timeout sent", "after", "GET /containers/{id}/json: exited"), Step.ENDED),
        (Moment("running stop timeout sent", "commit", "concluded stop timeout sent"), Step.CONCLUDE),
        (Moment("concluded", "after", "report failed"), Step.SEND_REPORT),
        (Moment("concluded", "commit", "done"), Step.REPORT_STORED),
        (Moment("done", "before", "DELETE /containers/{id}"), Step.REMOVE),
        (Moment("done stop timeout sent", "commit", "-"), Step.FORGET),
    ],
)
def test_a_moment_belongs_to_a_step(moment: Moment, step: Step | None) -> None:
    assert step_of(moment) is step


def test_a_spread_takes_every_step_and_every_way() -> None:
    moments = [Moment("-", "commit", "claiming"), Moment("claiming", "before", "claim"),
               Moment("claiming", "commit", "claimed"), Moment("running", "commit", "concluded")]  # fmt: skip
    points = [Point(way, moment) for way in WAYS for moment in moments]
    chosen = spread(points, 12)
    assert len(chosen) == 12
    assert {point.step for point in chosen} == {point.step for point in points}
    assert {point.way for point in chosen} == set(WAYS)
    assert spread(points, 1000) == points
