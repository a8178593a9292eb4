"""Every combination of what engine, journal and server can say, and what may never follow from it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from runtime.agent.tasks.reconcile import TABLE, Box, Decision, Row, Server, Situation, decide, needs_server, row_of
from runtime.agent.tasks.records import KEPT_STAGES, Stage

GONE = (Server.ENDED, Server.MOVED, Server.DELETED)
TAKES_AWAY = (Decision.STOP_STALE, Decision.REMOVE, Decision.LOST, Decision.FORGET)
FLAGS = (True, False)


def everything() -> Iterator[Situation]:
    stages: list[Stage | None] = [None, *Stage]
    for values in itertools.product(Box, stages, Server, FLAGS, FLAGS, FLAGS, FLAGS):
        yield Situation(*values)


ALL = list(everything())


def test_every_situation_has_a_row_and_every_row_a_situation() -> None:
    decided = Counter(row_of(seen) for seen in ALL)
    assert sum(decided.values()) == len(ALL) == len(Box) * (len(Stage) + 1) * len(Server) * 16
    assert set(decided) == set(TABLE), "a row that never decides is no help to a reader"


def test_every_row_says_why_in_one_word() -> None:
    assert all(row.why.replace("_", "").isalpha() for row in TABLE)


def test_what_is_not_ours_is_never_judged() -> None:
    assert {decide(seen) for seen in ALL if not seen.own} == {Decision.FOREIGN}


def test_nothing_is_ended_or_removed_while_the_server_does_not_say_so() -> None:
    """But for what is delivered: there the server has said so before, and the journal holds that."""
    for seen in ALL:
        if seen.server in (Server.UNKNOWN, Server.OURS) and decide(seen) in (Decision.STOP_STALE, Decision.REMOVE):
            assert seen.stage is Stage.DONE, seen


@pytest.mark.case("FC-005")
def test_only_what_started_and_is_surely_gone_is_lost() -> None:
    """The engine was away for half a minute, and the work was called dead."""
    lost = [seen for seen in ALL if decide(seen) is Decision.LOST]
    assert {(seen.box, seen.server, seen.own, seen.whole) for seen in lost} == {(Box.NONE, Server.OURS, True, True)}
    assert {seen.stage for seen in lost} == set(KEPT_STAGES)


def test_an_absence_means_nothing_while_the_list_is_in_doubt() -> None:
    for seen in ALL:
        if seen.box is Box.NONE and not seen.whole and seen.stage in KEPT_STAGES and seen.server not in GONE:
            assert decide(seen) in (Decision.KEEP, Decision.FOREIGN), seen


def test_an_undelivered_outcome_outlives_every_word_of_the_server() -> None:
    for seen in ALL:
        if seen.stage is Stage.CONCLUDED and seen.own:
            assert decide(seen) is Decision.REPORT, seen


def test_a_container_without_a_claim_goes_only_by_the_servers_word_and_not_in_its_first_minute() -> None:
    for seen in ALL:
        if seen.stage is None and seen.box is not Box.NONE and decide(seen) in TAKES_AWAY:
            assert seen.server in GONE and seen.settled and seen.own, seen


def test_what_runs_is_watched_or_stopped_with_grace_and_never_just_removed() -> None:
    for seen in ALL:
        if seen.box is Box.RUNNING and seen.stage is not Stage.DONE:
            assert decide(seen) is not Decision.REMOVE, seen


def test_nothing_that_ran_is_started_again() -> None:
    for seen in ALL:
        if decide(seen) in (Decision.START, Decision.RESUME):
            assert seen.box in (Box.NONE, Box.CREATED), seen
            assert not (seen.box is Box.NONE and seen.stage in KEPT_STAGES), seen


def test_what_the_engine_is_removing_is_left_to_it() -> None:
    for seen in ALL:
        if seen.box is Box.GOING and seen.own and seen.stage is None:
            assert decide(seen) is Decision.KEEP, seen


def test_nothing_at_all_is_forgotten_and_a_doubtful_list_forgets_no_claim() -> None:
    for seen in ALL:
        if seen.box is Box.NONE and seen.own and seen.stage is None:
            assert decide(seen) is Decision.FORGET, seen
        if seen.stage is Stage.DONE and seen.own:
            surely_gone = seen.box is Box.NONE and seen.whole
            assert decide(seen) is (Decision.FORGET if surely_gone else Decision.REMOVE), seen


def test_what_sleeps_is_neither_concluded_nor_started() -> None:
    for seen in ALL:
        if seen.stage is Stage.SLEEPING and seen.box in (Box.ENDED, Box.CREATED) and seen.own:
            wanted = Decision.STOP_STALE if seen.server in GONE else Decision.REST
            assert decide(seen) is wanted, seen


def test_a_claim_whose_answer_is_unknown_is_asked_about_first() -> None:
    assert {decide(seen) for seen in ALL if seen.stage is Stage.CLAIMING and seen.own} == {Decision.ASK_AGAIN}


def test_a_journal_that_was_lost_needs_no_server_for_what_runs() -> None:
    """The labels say whose it is: it is watched, and its limits are kept, before the server is there again."""
    found = Situation(Box.RUNNING, None)
    assert decide(found) is Decision.RECLAIM
    assert decide(Situation(Box.RUNNING, None, same_instance=False)) is Decision.KEEP
    for box in (Box.CREATED, Box.ENDED, Box.GOING):
        assert decide(Situation(box, None)) is Decision.KEEP, "asleep, or over: only the server knows"


def test_more_doubt_never_takes_more_away() -> None:
    """Turning one known thing into an unknown one leads from taking away to keeping, never back."""
    for seen in ALL:
        doubtful = Situation(seen.box, seen.stage, Server.UNKNOWN, seen.own, seen.same_instance, False, False)
        if decide(doubtful) in (Decision.STOP_STALE, Decision.REMOVE, Decision.LOST):
            assert seen.stage is Stage.DONE, (seen, doubtful)


def test_the_server_is_asked_exactly_where_its_word_counts() -> None:
    answers: dict[tuple[object, ...], set[Decision]] = {}
    for seen in ALL:
        answers.setdefault(_but_for_the_server(seen), set()).add(decide(seen))
    for seen in ALL:
        assert needs_server(seen) == (len(answers[_but_for_the_server(seen)]) > 1), seen


def _but_for_the_server(seen: Situation) -> tuple[object, ...]:
    return (seen.box, seen.stage, seen.own, seen.same_instance, seen.settled, seen.whole)


def test_a_row_fits_by_all_that_it_asks_for() -> None:
    row = Row(Decision.KEEP, "x", box=(Box.NONE,), stage=(None,), server=(Server.OURS,), own=True, settled=False)
    fits = Situation(Box.NONE, None, Server.OURS, own=True, settled=False)
    assert row.fits(fits)
    for other in (
        Situation(Box.ENDED, None, Server.OURS, settled=False),
        Situation(Box.NONE, Stage.DONE, Server.OURS, settled=False),
        Situation(Box.NONE, None, Server.ENDED, settled=False),
        Situation(Box.NONE, None, Server.OURS, own=False, settled=False),
        Situation(Box.NONE, None, Server.OURS, settled=True),
    ):
        assert not row.fits(other)
