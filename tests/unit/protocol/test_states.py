"""The task state machine, reasons and problem codes: tables of the code, of the contract and of the docs agree."""

from __future__ import annotations

import itertools

import pytest

from runtime.protocol.nodes import EventKind
from runtime.protocol.problems import CODES, TITLES, Problem
from runtime.protocol.reasons import CLASS_OF, EXIT_TIMEOUT, Reason, ReasonClass
from runtime.protocol.states import ON_NODE, TERMINAL, TRANSITIONS, Actor, Desired, Phase, Status, transition
from tests.unit.protocol.doc_tables import rows_under

DIAGRAM = """
pending   -> scheduled cancelled
scheduled -> running cancelled pending
running   -> completed failed stopped sleeping pending
sleeping  -> running stopped failed
"""

EDGES = {
    (source.strip(), target)
    for line in DIAGRAM.strip().splitlines()
    for source, targets in [line.split("->")]
    for target in targets.split()
}

REASONS = {
    "program": "exited signalled timeout oom_killed health_failed start_timeout image_invalid image_not_found "
    "image_no_platform registry_auth_failed image_pull_failed pull_timeout volume_rejected env_invalid "
    "profile_rejected",
    "operator": "stopped_by_operator",
    "infrastructure": "disk_full shm_too_small port_in_use gpu_unavailable engine_unavailable name_conflict "
    "start_failed never_started lost_container engine_restarted host_restarted node_lost end_unknown",
}

PROBLEMS = {
    400: "malformed_json bad_parameter node_scope_required unknown_arch",
    401: "bad_api_key bad_token",
    403: "agent_key_not_allowed operator_token_not_allowed role_not_allowed node_scope_mismatch instance_mismatch",
    404: "task_not_found node_not_found gpu_not_found request_not_found agent_build_missing route_not_found",
    405: "method_not_allowed",
    409: "state_conflict illegal_transition task_exists log_offset node_id_in_use instance_cloned stale_run "
    "card_in_use cards_not_allocated not_running node_online node_has_tasks",
    413: "body_too_large",
    415: "unsupported_media_type",
    422: "invalid_task invalid_heartbeat invalid_node_id vendor_required illegal_transition",
    429: "too_many_requests",
    503: "overloaded database_busy database_rolled_back starting",
}

EVENTS = (
    "node_registered node_replaced node_state node_cordoned brake gpu_suspect gpu_lost gpu_returned cards_missing "
    "task_state task_phase claim_overdue claim_recovered task_stalled late_result checkpoint_resume build_changed "
    "instruction_state database_rolled_back operator_action"
)


@pytest.mark.parametrize(("source", "target"), list(itertools.product(Status, Status)))
def test_the_edges_are_those_of_the_diagram_and_no_other(source: Status, target: Status) -> None:
    row = transition(source, target)
    assert (row is not None) == ((source.value, target.value) in EDGES)
    if row is not None:
        assert (row.source, row.target) == (source, target)
        assert row.by
        assert row.when


def test_no_edge_is_there_twice() -> None:
    assert len(TRANSITIONS) == len(EDGES)


def test_terminal_states_have_no_way_out_and_all_others_have_one() -> None:
    assert {s.value for s in TERMINAL} == {"completed", "failed", "cancelled", "stopped"}
    assert {t.source for t in TRANSITIONS} == set(Status) - TERMINAL
    assert {s.value for s in ON_NODE} == {"scheduled", "running", "sleeping"}


def test_only_the_server_moves_a_task_that_no_node_has_claimed() -> None:
    for row in TRANSITIONS:
        if row.source is Status.PENDING or row.target is Status.CANCELLED:
            assert row.by == (Actor.SERVER,)
    assert transition(Status.SCHEDULED, Status.RUNNING).by == (Actor.AGENT,)  # type: ignore[union-attr]


def test_only_the_node_says_that_work_completed() -> None:
    completed = [row for row in TRANSITIONS if row.target is Status.COMPLETED]
    assert [(row.source, row.by) for row in completed] == [(Status.RUNNING, (Actor.AGENT,))]


def test_the_words_of_desired_and_phase() -> None:
    assert [d.value for d in Desired] == ["run", "sleep", "stop", "delete"]
    phases = "claimed checking pulling creating starting loading running stopping sleeping ended reporting stuck"
    assert [p.value for p in Phase] == phases.split()


def test_reasons_are_the_full_list_with_their_classes() -> None:
    assert {c: {r.value for r in Reason if CLASS_OF[r].value == c} for c in REASONS} == {
        c: set(words.split()) for c, words in REASONS.items()
    }
    assert set(CLASS_OF) == set(Reason)
    assert {c.value for c in ReasonClass} == set(REASONS)
    assert EXIT_TIMEOUT == 124


def test_problem_codes_are_the_full_list_with_their_statuses() -> None:
    expected: dict[str, set[int]] = {}
    for status, words in PROBLEMS.items():
        for code in words.split():
            expected.setdefault(code, set()).add(status)
    assert {code: set(statuses) for code, statuses in CODES.items()} == expected
    assert set(TITLES) == set(CODES)


def test_event_kinds_are_the_full_list() -> None:
    assert [kind.value for kind in EventKind] == EVENTS.split()


@pytest.mark.parametrize("code", CODES)
def test_a_problem_as_a_document(code: str) -> None:
    for status in CODES[code]:
        document = Problem(code, "A sentence.", status=status, held=3).document("cp-1")
        assert document == {
            "type": f"urn:heterofleet:problem:{code}",
            "title": TITLES[code],
            "status": status,
            "detail": "A sentence.",
            "code": code,
            "control_plane_id": "cp-1",
            "held": 3,
        }


def test_a_problem_takes_no_status_that_its_code_does_not_have() -> None:
    with pytest.raises(ValueError, match="task_not_found comes with"):
        Problem("task_not_found", "gone", status=400)
    assert Problem("illegal_transition", "not now").status == 409


def test_the_documented_transitions_are_the_table() -> None:
    documented = [tuple(row) for row in rows_under("protocol.md", "from", "to", "by", "when")]
    assert documented == [
        (f"`{t.source.value}`", f"`{t.target.value}`", ", ".join(actor.value for actor in t.by), t.when)
        for t in TRANSITIONS
    ]


def test_the_documented_reasons_are_the_table() -> None:
    documented = {row[0].strip("`"): row[1] for row in rows_under("protocol.md", "reason", "class", "means")}
    assert documented == {reason.value: CLASS_OF[reason].value for reason in Reason}


def test_the_documented_problem_codes_are_the_table() -> None:
    documented = {row[0].strip("`"): row[1] for row in rows_under("protocol.md", "code", "status", "means")}
    assert documented == {code: ", ".join(str(status) for status in CODES[code]) for code in CODES}
