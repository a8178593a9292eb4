"""What came of each host and of the run, and the exit code."""

from __future__ import annotations

import json

import pytest

from runtime.fleet.actions import CONTROL_PLANE, UPGRADE, VERIFY, Action
from runtime.fleet.progress import Progress
from runtime.fleet.summary import Stop, Summary, document, summarise
from tests.unit.fleet.events import Event, begins, fails, play, says, stats, unreachable, well

WAVES = "Upgrade in waves"


def came_of(
    *events: Event, rc: int | None = 0, stop: Stop | None = None, action: Action = UPGRADE, serial: bool = False
) -> Summary:
    progress = Progress(["a", "b"], [WAVES] if serial else [], [1, 1] if serial else None)
    for at, event in enumerate(events):
        progress.apply(event, float(at))
    return summarise(action, progress, rc, stop)


BOTH_WELL = (begins("a"), says("a", "changed"), begins("b"), says("b", "unchanged"), stats())


@pytest.mark.parametrize(
    ("events", "rc", "outcome", "code", "hosts"),
    [
        (BOTH_WELL, 0, "done", 0, ["changed", "unchanged"]),
        ((begins("a"), says("a", "changed"), says("b", "restored"), stats()), 2, "failed", 1, ["changed", "restored"]),
        ((says("a", "failed"), says("b", "skipped"), stats()), 2, "failed", 1, ["failed", "skipped"]),
        ((says("a", "changed"), says("b", "refused"), stats()), 2, "refused", 6, ["changed", "refused"]),
        # A failure says more than a host that cannot be reached, and that more than a refused one.
        (
            (unreachable("a"), says("b", "refused"), stats(dark={"a": 1})),
            4,
            "unreachable",
            4,
            ["unreachable", "refused"],
        ),
        ((unreachable("a"), says("b", "failed"), stats(dark={"a": 1})), 4, "failed", 1, ["unreachable", "failed"]),
        # The preflight goes on where a host does not answer, and refuses it then.
        (
            (unreachable("a"), begins("a"), says("a", "refused", reason="ssh"), says("b", "changed"), stats()),
            2,
            "unreachable",
            4,
            ["unreachable", "changed"],
        ),
        (
            (begins("a"), fails("a", "x"), says("b", "changed"), stats(failures={"a": 1})),
            2,
            "failed",
            1,
            ["failed", "changed"],
        ),
        # A host that says well and fails afterwards is not well.
        (
            (says("a", "changed"), fails("a", "x"), says("b", "changed"), stats(failures={"a": 1})),
            2,
            "failed",
            1,
            ["failed", "changed"],
        ),
        (
            (fails("a", "no key", "node_preflight/main"), says("b", "changed"), stats(failures={"a": 1})),
            2,
            "refused",
            6,
            ["refused", "changed"],
        ),
        # Without a word of the roles: what the tasks did.
        ((begins("a"), well("a", changed=True), begins("b"), stats()), 0, "done", 0, ["changed", "unchanged"]),
        ((), 4, "broken", 1, ["untouched", "untouched"]),
        ((), None, "broken", 1, ["untouched", "untouched"]),
    ],
)
def test_outcome_and_exit_code(
    events: tuple[Event, ...], rc: int | None, outcome: str, code: int, hosts: list[str]
) -> None:
    found = came_of(*events, rc=rc)
    assert (found.outcome, found.exit_code, [row.result.value for row in found.rows]) == (outcome, code, hosts)


def test_a_stop_between_hosts_leaves_the_others_untouched() -> None:
    found = came_of(
        play(WAVES), begins("a"), says("a", "changed"), play("Sum up"), stats(), stop=Stop.BETWEEN_HOSTS, serial=True
    )
    assert (found.outcome, found.exit_code) == ("interrupted", 130)
    assert [(row.result.value, row.reason) for row in found.rows] == [
        ("changed", None),
        ("untouched", "the run was stopped before its turn"),
    ]


def test_hosts_that_the_playbook_skips_at_a_stop_are_interrupted() -> None:
    found = came_of(
        says("a", "changed"),
        says("b", "skipped", reason="a stop was asked for"),
        stats(),
        rc=2,
        stop=Stop.BETWEEN_HOSTS,
    )
    assert (found.outcome, found.exit_code, found.rows[1].reason) == ("interrupted", 130, "a stop was asked for")


def test_a_stop_that_came_too_late_changes_nothing() -> None:
    assert came_of(*BOTH_WELL, stop=Stop.BETWEEN_HOSTS).outcome == "done"


def test_a_stop_at_once_says_what_was_cut_and_where() -> None:
    found = came_of(begins("a", "agent/change"), rc=None, stop=Stop.NOW)
    assert (found.outcome, found.exit_code) == ("interrupted", 130)
    cut, untouched = found.rows
    assert cut.result.value == "cut"
    assert cut.reason == "gets the agent, when the run was stopped; the next run sets it right"
    assert untouched.result.value == "untouched"


def test_a_host_that_said_it_is_well_and_was_not_yet_confirmed_is_cut() -> None:
    found = came_of(
        begins("a", "agent/change"), says("a", "changed"), begins("a", "agent/confirm"), rc=None, stop=Stop.NOW
    )
    assert (found.rows[0].result.value, found.rows[0].reason) == (
        "cut",
        "is waited for, when the run was stopped; the next run sets it right",
    )


def test_a_host_that_another_ones_end_leaves_half_done_is_cut() -> None:
    found = came_of(play(WAVES), begins("a"), begins("b"), fails("a", "x"), stats({"a": 1}), rc=2, serial=True)
    assert [(row.result.value, row.reason) for row in found.rows] == [
        ("failed", "x"),
        ("cut", "the run ended before it did; the next run sets it right"),
    ]


def test_a_mismatch_of_the_builds_is_the_controllers() -> None:
    found = came_of(
        begins("a", "distribution/compare"),
        fails("a", "the mirror differs", "distribution/compare"),
        stats(failures={"a": 1}),
        rc=2,
        serial=True,
    )
    assert (found.outcome, found.exit_code) == ("failed", 1)
    assert [(row.host, row.result.value, row.reason) for row in found.rows] == [
        ("localhost", "failed", "the mirror differs"),
        ("a", "untouched", "the run ended before its turn"),
        ("b", "untouched", "the run ended before its turn"),
    ]


def test_settings_that_no_host_can_go_on_with_are_refused_before_any() -> None:
    found = came_of(fails("a", "fleet_server_url is missing", "node_preflight/settings"), stats({"a": 1}), rc=2)
    assert (found.outcome, found.exit_code, found.rows[0].result.value) == ("refused", 6, "refused")


def test_findings_of_the_preflight_are_in_the_document_as_they_are() -> None:
    one = {"host": None, "check": "key file", "found": "nothing", "wanted": "a path", "do": "set it", "refuses": True}
    progress = Progress(["a"])
    for at, event in enumerate(
        (
            well("a", "node_preflight/settings", node_preflight_findings=[one, "odd"]),
            fails("a", "key file: found nothing", "node_preflight/settings"),
            stats({"a": 1}),
        )
    ):
        progress.apply(event, float(at))
    summary = summarise(UPGRADE, progress, 2, None)
    assert document("id", UPGRADE, summary, progress)["findings"] == [one]
    assert (summary.exit_code, summary.rows[0].reason) == (6, "key file: found nothing")


def test_a_control_plane_that_is_refused_by_the_look_was_not_touched() -> None:
    given = (begins("a", "control_plane/look"), fails("a", "no server builds", "control_plane/look"), stats({"a": 1}))
    progress = Progress(["a"])
    for at, event in enumerate(given):
        progress.apply(event, float(at))
    found = summarise(CONTROL_PLANE, progress, 2, None)
    assert (found.outcome, found.exit_code, found.rows[0].result.value) == ("refused", 6, "refused")
    assert found.rows[0].reason == "no server builds"
    after = Progress(["a"])
    for at, event in enumerate((begins("a"), fails("a", "it broke", "control_plane/switch"), stats({"a": 1}))):
        after.apply(event, float(at))
    assert summarise(CONTROL_PLANE, after, 2, None).outcome == "failed"


def test_what_was_not_compared_does_not_differ() -> None:
    said = {"good": False, "compared": False, "text": "There is nothing to compare with.\nno manifest\n"}
    found = came_of(
        well("a", "distribution/verify", distribution_verdict={**said, "places": [], "nodes": {}, "equal": []}),
        fails("a", "There is nothing to compare with.", "distribution/verify"),
        stats({"a": 1}),
        rc=2,
        action=VERIFY,
    )
    assert (found.outcome, found.exit_code) == ("failed", 1)
    assert [(row.host, row.result.value, row.reason) for row in found.rows] == [
        ("localhost", "failed", "There is nothing to compare with. no manifest"),
        ("a", "untouched", "it was not compared"),
        ("b", "untouched", "it was not compared"),
    ]


def verdict(good: bool, nodes: dict[str, str], equal: list[str], places: list[dict[str, str]]) -> Event:
    said = {"good": good, "text": "Not all is 1.\nTABLE", "nodes": nodes, "equal": equal, "places": places}
    return well("a", "distribution/verify", distribution_verdict=said)


def test_verify_says_of_each_host_whether_it_differs() -> None:
    found = came_of(
        begins("a", "agent/look"),
        begins("b", "agent/look"),
        verdict(False, {"b": "runs 1.0,\n wanted 1.1"}, ["a"], []),
        fails("a", "Not all is 1.", "distribution/verify"),
        stats({"a": 1}),
        rc=2,
        action=VERIFY,
    )
    assert (found.outcome, found.exit_code) == ("failed", 1)
    assert [(row.host, row.result.value, row.reason) for row in found.rows] == [
        ("localhost", "differs", "1 host(s) differ"),
        ("a", "equal", None),
        ("b", "differs", "runs 1.0, wanted 1.1"),
    ]


def test_verify_of_a_mismatch_in_a_place_only() -> None:
    found = came_of(
        verdict(False, {}, ["a", "b"], [{"place": "mirror"}]),
        fails("a", "Not all is 1.", "distribution/verify"),
        stats({"a": 1}),
        rc=2,
        action=VERIFY,
    )
    assert next((row.host, row.result.value, row.reason) for row in found.rows) == (
        "localhost",
        "differs",
        "Not all is 1.",
    )
    assert found.exit_code == 1


def test_the_document_is_whole_and_has_null_for_what_is_not_known() -> None:
    progress = Progress(["a"])
    found = summarise(UPGRADE, progress, None, Stop.NOW)
    body = json.loads(json.dumps(document("id", UPGRADE, found, progress, seconds=1.0)))
    assert body == {
        "run_id": "id",
        "action": "upgrade",
        "outcome": "interrupted",
        "seconds": 1.0,
        "waves": {"done": 0, "total": None},
        "hosts": [
            {
                "host": "a",
                "outcome": "untouched",
                "from": None,
                "to": None,
                "reason": "the run was stopped before its turn",
                "wave": None,
                "seconds": None,
            }
        ],
        "findings": [],
        "places": [],
        "errors": [],
    }


def test_the_sentence_counts_the_worst_first() -> None:
    assert came_of(says("a", "changed"), says("b", "failed"), stats()).sentence() == "1 failed, 1 changed"
