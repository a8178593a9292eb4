"""What an acceptance decides about each orphan, line by line."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.protocol.heartbeat import Foreign
from runtime.protocol.nodes import NodeState
from runtime.protocol.states import OrphanState, Status
from runtime.server.services.restore.facts import Facts, Known, NodeWord, Told
from runtime.server.services.restore.plan import (
    FAR_ATTEMPT,
    FAR_REVISION,
    Verdict,
    decide,
    is_to_stop,
    judge,
    status_of,
)

UID = "uid-1"


def told(
    state: str = "running", node: str = "a", attempt: int = 2, token: str | None = "token", uid: str = UID, **entry: Any
) -> Told:
    whole = Foreign("c", uid=uid, attempt=attempt, state=state, claim_token=token, **entry)
    return Told(node, "instance", uid, attempt, "t", OrphanState(state), whole)


def row(status: str, node: str | None = "a", attempt: int = 2, token: str | None = "token", uid: str = UID) -> Known:
    return Known(uid, "t", Status(status), node, attempt, token)


@pytest.mark.parametrize(
    ("orphan", "known", "id_holder", "verdict"),
    [
        # The database has never heard of it.
        (told(), None, None, "adopt"),
        (told("claimed"), None, None, "adopt"),
        (told("sleeping"), None, None, "adopt"),
        (told("concluded"), None, None, "adopt"),
        (told("superseded"), None, None, "stale"),
        (told(), None, "another", "blocked"),
        # It was waiting then.
        (told(), row("pending", None, 0, None), None, "adopt"),
        (told(), row("pending", None, 2, None), None, "adopt"),
        (told("concluded"), row("pending", None, 1, None), None, "adopt"),
        (told("superseded"), row("pending", None, 1, None), None, "known"),
        # It was given to this node and not claimed yet.
        (told(), row("scheduled", token=None), None, "adopt"),
        (told("concluded"), row("scheduled", token=None), None, "adopt"),
        (told("superseded"), row("scheduled", token=None), None, "release"),
        # It was here already.
        (told(), row("running"), None, "known"),
        (told("claimed"), row("running"), None, "known"),
        (told(token=None), row("running"), None, "known"),
        (told(token="another"), row("running"), None, "adopt"),
        (told("concluded"), row("running"), None, "adopt"),
        (told("superseded"), row("running"), None, "release"),
        # It fell asleep since, or woke.
        (told("sleeping"), row("running"), None, "adopt"),
        (told("sleeping"), row("sleeping"), None, "known"),
        (told("running"), row("sleeping"), None, "adopt"),
        (told("concluded"), row("sleeping"), None, "adopt"),
        # It was elsewhere, by an earlier attempt.
        (told(), row("running", "b", 1), None, "adopt"),
        (told("concluded"), row("sleeping", "b", 1), None, "adopt"),
        (told("superseded"), row("running", "b", 1), None, "known"),
        # What the database knows is later, or the end.
        (told(), row("running", "b", 3), None, "stale"),
        (told(), row("pending", None, 3, None), None, "stale"),
        (told(), row("completed"), None, "known"),
        (told("concluded"), row("failed", attempt=1), None, "known"),
    ],
)
def test_one_orphan(orphan: Told, known: Known | None, id_holder: str | None, verdict: str) -> None:
    assert judge(orphan, known, id_holder)[0] is Verdict(verdict)


@pytest.mark.parametrize(
    ("orphan", "status"),
    [
        (told(), "running"),
        (told("claimed"), "running"),
        (told("sleeping"), "sleeping"),
        (told("concluded", from_status="running"), "running"),
        (told("concluded", from_status="sleeping"), "sleeping"),
        (told("concluded"), "running"),
    ],
)
def test_where_an_adopted_task_stands(orphan: Told, status: str) -> None:
    assert status_of(orphan) is Status(status)


@pytest.mark.parametrize(
    ("orphan", "has_row", "choices", "default", "stops"),
    [
        (told(), False, {}, "adopt", False),
        (told(), False, {}, "stop", True),
        (told(), True, {UID: "stop"}, "adopt", True),
        (told(), True, {"t": "stop"}, "adopt", True),
        (told(), True, {"t": "adopt"}, "stop", False),
        (told(), True, {"other": "stop"}, "adopt", False),
        (told("sleeping"), False, {}, "stop", True),
        (told("concluded"), False, {UID: "stop"}, "stop", False),
        (told("claimed"), True, {}, "adopt", False),
        (told("claimed"), False, {UID: "adopt"}, "adopt", True),
    ],
)
def test_which_orphans_are_ended_at_once(
    orphan: Told, has_row: bool, choices: dict[str, str], default: str, stops: bool
) -> None:
    """What has ended cannot be stopped any more; what had not started has lost its secret values with its row."""
    assert is_to_stop(orphan, has_row=has_row, choices=choices, default=default) is stops


def facts(*orphans: Told, rows: tuple[Known, ...] = (), nodes: tuple[NodeWord, ...] = (), **members: Any) -> Facts:
    tasks = {known.uid: known for known in rows}
    return Facts("then", 10, 10, members.pop("seen_revision", 500), nodes, orphans, tasks, **members)


def word(node_id: str, *claims: tuple[str, int], told: bool = True, waiting: bool = False) -> NodeWord:
    return NodeWord(node_id, NodeState.ONLINE, None, told or waiting, told, waiting, frozenset(claims))


def test_the_highest_attempt_that_any_node_knows_is_the_true_one() -> None:
    early, late = told("running", "a", 1), told("concluded", "b", 3)
    plan = decide(facts(early, late, rows=(row("running", "a", 1),)), 1)
    assert {(one.told.attempt, one.verdict.value) for one in plan.decisions} == {(1, "stale"), (3, "adopt")}


def test_of_one_attempt_what_runs_counts_before_what_is_said_to_be_over() -> None:
    plan = decide(facts(told("superseded", "a"), told("running", "b")), 1)
    assert {(one.told.node_id, one.verdict.value) for one in plan.decisions} == {("a", "stale"), ("b", "adopt")}


@pytest.mark.parametrize(
    ("node", "requeued"),
    [
        (word("a"), True),
        (word("a", (UID, 1)), False),
        (word("a", told=False), False),
        (word("a", told=False, waiting=True), False),
        (word("b"), False),
    ],
)
def test_what_was_given_to_a_node_that_denies_it_waits_again(node: NodeWord, requeued: bool) -> None:
    """In doubt (the node has not told) it stays as it is."""
    plan = decide(facts(rows=(row("scheduled", "a", 1, None),), nodes=(node,)), 1)
    assert bool(plan.requeue) is requeued


def test_what_the_node_has_claimed_in_the_lost_time_does_not_wait_again() -> None:
    plan = decide(facts(told(attempt=1), rows=(row("scheduled", "a", 1, None),), nodes=(word("a"),)), 1)
    assert plan.requeue == () and len(plan.of(Verdict.ADOPT)) == 1


def test_numbers_go_on_far_above_everything_that_was_seen() -> None:
    plan = decide(facts(told(attempt=40), seen_revision=777), 12)
    assert (plan.revision, plan.attempt) == (777 + FAR_REVISION, 40 + FAR_ATTEMPT)
    assert decide(facts(seen_revision=3), 12).revision == 10 + FAR_REVISION


def test_who_has_not_told_is_named() -> None:
    plan = decide(facts(nodes=(word("a"), word("b", told=False), word("c", told=False, waiting=True))), 1)
    assert [one.node_id for one in plan.unheard] == ["b"]
    assert [one.node_id for one in plan.waiting] == ["c"]
